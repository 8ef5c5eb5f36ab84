"""Row b along the example axis is example b's, whoever made it, in steps and groups of any kind."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D, F = 6, 3, 2
RNG = np.random.default_rng(0)
PARAMS = {
    "w": jnp.asarray(RNG.normal(size=(D, F)), jnp.float32),
    "b": jnp.asarray(RNG.normal(size=F), jnp.float32),
    "c": jnp.float32(0.7),
}
X = jnp.asarray(RNG.normal(size=(B, D)), jnp.float32)
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def out(p, x):
    """[..., F]: linear in b, so that its gradient rests on no example."""
    return jnp.tanh(x @ p["w"]) + p["b"]


def penalty(p):
    return 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values())


def own_gradients(term):
    """[B, *parameter]: of each example's own term."""
    return jax.vmap(jax.grad(term), (None, 0, 0))(PARAMS, X, jnp.arange(B))


def penalised(p, x):
    return jnp.mean(out(p, x)) + penalty(p)


def added(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def times(tree, number):
    return jax.tree.map(lambda leaf: leaf * number, tree)


def of_parts(p, x):
    return added(jax.grad(penalised)(p, x[:2]), jax.grad(penalised)(p, x[2:]))


def of_weighted_parts(p, x):
    one, two = jax.grad(penalised)(p, x[:3]), jax.grad(penalised)(p, x[3:])
    return added(times(one, 0.3), times(two, 0.7))


def of_weighted_steps(p, x):
    def step(total, rows):
        x, weight = rows
        return added(total, times(jax.grad(penalised)(p, x), weight)), None

    zeros = jax.tree.map(jnp.zeros_like, p)
    return lax.scan(step, zeros, (x.reshape(3, 2, D), jnp.arange(1.0, 4.0)))[0]


def fading(p, x):
    """What came before counts half at each step."""

    def step(total, rows):
        return added(times(total, 0.5), jax.grad(penalised)(p, rows)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, p), x.reshape(3, 2, D))[0]


# Gradients of microbatches, each example's weight, and how often the penalty is in it.
ADDED = {
    "parts of two sizes": (of_parts, [1 / 2] * 2 + [1 / 4] * 4, 2.0),
    "weighted parts": (of_weighted_parts, [0.1] * 3 + [0.7 / 3] * 3, 1.0),
    "weighted steps": (of_weighted_steps, [0.5, 0.5, 1.0, 1.0, 1.5, 1.5], 6.0),
    "fading steps": (fading, [0.125, 0.125, 0.25, 0.25, 0.5, 0.5], 1.75),
}


@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("name", ADDED)
def test_penalties_of_microbatches_are_everybodys(name, strategy):
    made, weights, often = ADDED[name]
    asked = {"each": hs.per_example(), "norms": hs.norms()}
    rewritten = hs.rewrite(made, batch_argnums=1, statistics=asked, strategy=strategy)
    plain, found = rewritten(PARAMS, X)
    weights = B * jnp.asarray(weights)
    own = own_gradients(lambda p, row, b: weights[b] * jnp.mean(out(p, row)) + often * penalty(p))
    jax.tree.map(close, found["each"], own)
    jax.tree.map(lambda g, each: close(g, each.mean(0)), plain, own)
    flat = np.hstack([each.reshape(B, -1) for each in jax.tree.leaves(own)])
    close(found["norms"], np.linalg.norm(flat, axis=1))
