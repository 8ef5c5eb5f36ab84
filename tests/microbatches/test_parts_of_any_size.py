"""Parts of a batch of any sizes, and statistics that rest on what all examples have."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.by_definition import length
from tests.microbatches import test_microbatches
from tests.microbatches.microbatch_statistics import OF_THE_WHOLE, assert_right, examples, expected
from tests.microbatches.microbatch_statistics import PARAMS as PARAMS_OF_STEPS
from tests.microbatches.microbatch_statistics import X as X_OF_STEPS

B, D = 12, 3
PARAMS = {"b": jnp.linspace(0.2, 0.7, D), "w": jnp.linspace(-1.0, 1.0, D * D).reshape(D, D)}
X = jnp.sin(jnp.arange(B * D) ** 1.3).reshape(B, D)
close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6)


def biased(p, x):
    """Its gradient by b has a constant in each row."""
    return jnp.mean(jnp.sum((jnp.tanh(x @ p["w"]) + p["b"] - x) ** 2, -1))


def inner(p, x):
    """Its gradients have no constants."""
    return jnp.mean(jnp.tanh(jnp.tanh(x @ p["w"] + p["b"]) @ p["b"]) ** 2)


def penalty(p):
    return 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values())


def penalised(p, x):
    return inner(p, x) + penalty(p)


def added(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def times(tree, number):
    return jax.tree.map(lambda leaf: leaf * number, tree)


def of_parts(*sizes):
    """A gradient of each part, added up with weights by its size."""

    def made(loss, p, x):
        ends = np.cumsum((0, *sizes))
        parts = [x[i:j] for i, j in pairwise(ends)]
        return added(*(times(jax.grad(loss)(p, rows), len(rows) / B) for rows in parts))

    return made


def in_one_loss(loss, p, x):
    parts = x[:5], x[5:10], x[10:]
    return jax.grad(lambda p: sum(loss(p, rows) * len(rows) / B for rows in parts))(p)


def summed(loss, p, x, size, **options):
    """The sum of the gradients of parts of one size, by a loop."""
    zero = jax.tree.map(jnp.zeros_like, p)
    step = lambda c, rows: (added(c, jax.grad(loss)(p, rows)), None)  # noqa: E731
    return lax.scan(step, zero, x.reshape(-1, size, D), **options)[0]


def scanned(size, unroll, count=B):
    return lambda loss, p, x: times(summed(loss, p, x[:count], size, unroll=unroll), size / count)


def two_loops(size):
    return lambda loss, p, x: times(
        added(summed(loss, p, x[:6], size), summed(loss, p, x[6:], size)), size / B
    )


def loop_and_rest(loss, p, x):
    rest = times(jax.grad(loss)(p, x[10:]), 2.0)
    return times(added(times(summed(loss, p, x[:10], 5), 5.0), rest), 1 / B)


def nested(loss, p, x):
    """Halves one by one, each by a loop over pairs."""
    zero = jax.tree.map(jnp.zeros_like, p)
    step = lambda c, half: (added(c, summed(loss, p, half, 2)), None)  # noqa: E731
    parts = x[:8].reshape(2, 4, D)
    return times(added(lax.scan(step, zero, parts)[0], summed(loss, p, x[8:], 2)), 1 / 6)


BOTH = {"bias": biased, "penalty": penalised}
EVEN = {
    "5 + 5 + 2": of_parts(5, 5, 2),
    "a rest step": scanned(4, 2),
    "two a step": scanned(2, 2),
    "two loops over single examples": two_loops(1),
}


# Parts that are taken apart again, and a bias added to single ones.
SPLIT_AGAIN = {
    **{name: EVEN[name] for name in ("a rest step", "two a step")},
    "a rest of single examples": scanned(1, 2, 11),
    "two loops": two_loops(3),
    "a loop and a rest": loop_and_rest,
    "nested": nested,
}


@pytest.mark.parametrize("name", SPLIT_AGAIN)
def test_parts_that_are_split_again_are_refused(name):
    made, count = partial(SPLIT_AGAIN[name], biased), 11 if "single" in name else B
    with pytest.raises(hs.Refusal) as refused:
        hs.rewrite(made, batch_argnums=1, statistics=hs.norms())(PARAMS, X[:count])
    assert refused.value.where.startswith(__file__)
    assert refused.value.help


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("name", "loss"),
    [(n, b) for n in [*EVEN, "one loss"] for b in BOTH if b != "bias" or n not in SPLIT_AGAIN],
)
def test_each_has_its_share(name, loss):
    made = partial(EVEN.get(name, in_one_loss), BOTH[loss])
    asked = {"each": hs.per_example(), "squares": hs.second_moment()}
    rewritten = hs.rewrite(made, batch_argnums=1, statistics=asked)
    plain, found = rewritten(PARAMS, X)
    alone = [jax.grad(BOTH[loss])(PARAMS, X[b : b + 1]) for b in range(B)]
    wanted = jax.tree.map(lambda *gradients: jnp.stack(gradients), *alone)
    jax.tree.map(close, found["each"], wanted)
    jax.tree.map(lambda s, each: close(s, (each**2).mean(0)), found["squares"], wanted)
    jax.tree.map(lambda g, each: close(g, each.mean(0)), plain, wanted)


CASES = test_microbatches.CASES


@pytest.mark.first(1)
@pytest.mark.parametrize("name", CASES)
def test_every_form(name, steps_taken):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=OF_THE_WHOLE)
    gradient, found = f(PARAMS_OF_STEPS, X_OF_STEPS)
    own = examples(test_microbatches.recurrent) if name == "recurrent" else examples()
    assert_right({"plain": gradient}, {"plain": jax.tree.map(lambda x: x.mean(0), own)})
    assert_right(found, expected(own))
    assert not steps_taken


def test_a_loss_in_a_loop_that_is_unrolled_whole():
    def loss(p, x):
        step = lambda total, rows: (total + p["b"][0] * inner(p, rows), None)  # noqa: E731
        return lax.scan(step, 0.0, x.reshape(3, 4, D), unroll=3)[0] / 3

    found = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(PARAMS, X)[1]
    alone = [jax.grad(lambda p, b=b: p["b"][0] * inner(p, X[b : b + 1]))(PARAMS) for b in range(B)]
    jax.tree.map(close, found, jax.tree.map(lambda *each: jnp.stack(each), *alone))


# Six examples, and a number of which the loss has the penalty alone.
P, SIX = PARAMS | {"c": jnp.float32(0.7)}, X[:6]


def out(p, x):
    """[..., D]: linear in b, so that its gradient rests on no example."""
    return jnp.tanh(x @ p["w"]) + p["b"]


def linear(p, x):
    return jnp.mean(out(p, x)) + penalty(p)


def of_parts_of_two_sizes(p, x):
    return added(jax.grad(linear)(p, x[:2]), jax.grad(linear)(p, x[2:]))


def of_weighted_parts(p, x):
    one, two = jax.grad(linear)(p, x[:3]), jax.grad(linear)(p, x[3:])
    return added(times(one, 0.3), times(two, 0.7))


def of_weighted_steps(p, x):
    def step(total, rows):
        x, weight = rows
        return added(total, times(jax.grad(linear)(p, x), weight)), None

    zeros = jax.tree.map(jnp.zeros_like, p)
    return lax.scan(step, zeros, (x.reshape(3, 2, D), jnp.arange(1.0, 4.0)))[0]


def fading(p, x):
    """What came before counts half at each step."""

    def step(total, rows):
        return added(times(total, 0.5), jax.grad(linear)(p, rows)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, p), x.reshape(3, 2, D))[0]


# Gradients of microbatches, each example's weight, and how often the penalty is in it.
ADDED = {
    "parts of two sizes": (of_parts_of_two_sizes, [1 / 2] * 2 + [1 / 4] * 4, 2.0),
    "weighted parts": (of_weighted_parts, [0.1] * 3 + [0.7 / 3] * 3, 1.0),
    "weighted steps": (of_weighted_steps, [0.5, 0.5, 1.0, 1.0, 1.5, 1.5], 6.0),
    "fading steps": (fading, [0.125, 0.125, 0.25, 0.25, 0.5, 0.5], 1.75),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("name", ADDED)
def test_penalties_of_microbatches_are_everybodys(name, strategy):
    made, weights, often = ADDED[name]
    asked = {"each": hs.per_example(), "norms": hs.norms()}
    plain, found = hs.rewrite(made, batch_argnums=1, statistics=asked, strategy=strategy)(P, SIX)

    def share(p, row, weight):
        return 6 * weight * jnp.mean(out(p, row)) + often * penalty(p)

    own = jax.vmap(jax.grad(share), (None, 0, 0))(P, SIX, jnp.asarray(weights))
    jax.tree.map(close, found["each"], own)
    jax.tree.map(lambda g, each: close(g, each.mean(0)), plain, own)
    close(found["norms"], length(own))
