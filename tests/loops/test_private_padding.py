"""Clipped gradients beside padding, where branches and loops add the examples' gradients up: a
term that all share would be divided by the number of the real examples, and so rest on them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

MAX_NORM = 0.5
REAL = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
STATISTIC = hs.clipped_mean(MAX_NORM)


def drawn(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


PARAMS = {"w": drawn(3, 2), "s": np.float32(0.7), "unused": np.float32(1)}
X = drawn(len(REAL), 3)


def square_sum(rows, real):
    return jnp.sum(jnp.sum(rows**2, -1) * real)


def branched(p, x, real):
    """A parameter decides, so that the module keeps both branches."""
    hidden = lax.cond(p["s"] > 0, lambda h: jnp.tanh(h) * p["s"], jnp.sin, x @ p["w"])
    return square_sum(hidden, real)


def a_term_in_a_branch(p, x, real):
    def loss(h):
        return square_sum(jnp.tanh(h) * p["s"], real) + p["s"] ** 2

    return lax.cond(p["s"] > 0, loss, lambda h: square_sum(h, real), x @ p["w"])


def a_row_of_nobody_in_a_branch(p, x, real):
    """The last row is no example's, and sums of rows have it with them."""

    def loss(p):
        rows = jnp.concatenate([x * real[:, None], jnp.ones((1, 3))])
        return jnp.sum(jnp.tanh(rows @ p["w"]) ** 2)

    return lax.cond(p["s"] > 0, loss, lambda p: square_sum(x @ p["w"], real), p)


def a_term_in_each_step(p, x, real):
    def step(so_far, example):
        row, counts = example
        return so_far + counts * jnp.sum(jnp.tanh(row @ p["w"]) ** 2) + p["s"], None

    return lax.scan(step, 0.0, (x, real))[0]


def private(loss):
    options = {"batch_argnums": (1, 2), "is_real": 2, "loss_reduction": "sum"}
    return hs.grad(loss, statistics=STATISTIC, **options)(PARAMS, X, REAL)[1]


def test_each_real_examples_own_is_clipped():
    alone = [jax.grad(branched)(PARAMS, X[[i]], REAL[[i]]) for i in np.flatnonzero(REAL)]
    norms = [np.sqrt(sum(np.sum(a**2) for a in jax.tree.leaves(g))) for g in alone]
    weights = [min(1, MAX_NORM / n) / len(alone) for n in norms]
    weighted = [jax.tree.map(lambda a, w=w: w * a, g) for g, w in zip(alone, weights, strict=True)]
    expected = jax.tree.map(lambda *leaves: sum(leaves), *weighted)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        private(branched),
        expected,
    )


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (a_term_in_a_branch, "share a term"),
        (a_row_of_nobody_in_a_branch, "each example meets others"),
        (a_term_in_each_step, "share a term by their number"),
    ],
)
def test_what_all_share_is_refused(loss, why):
    with pytest.raises(hs.Refusal, match=why):
        private(loss)
