"""Loops over parts of the batch, microbatches or `lax.map`, against one example at a time."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

KEYS = jax.random.split(jax.random.key(0), 6)
PARAMS = {
    "a": jax.random.normal(KEYS[0], (7, 5)),
    "b": jax.random.normal(KEYS[1], (5,)),
    "c": jax.random.normal(KEYS[2], (5, 4)),
    "r": jax.random.normal(KEYS[3], (5, 5)),
}
X, Y = jax.random.normal(KEYS[4], (6, 7)), jax.random.normal(KEYS[5], (6, 4))
MASK = jax.random.bernoulli(jax.random.key(3), 0.5, (6, 4))


def one(p, x, y):
    """One example's loss, with a loop of its own."""
    h = jnp.tanh(x @ p["a"] + p["b"])
    h, _ = lax.scan(lambda h, _: (jnp.tanh(h @ p["r"]), None), h, None, length=3)
    return jnp.sum((h @ p["c"] - y) ** 2)


def one_branching(p, x, y):
    return lax.cond(x[0] > 0, lambda: one(p, x, y), lambda: 2 * one(p, x**2, y))


def last_state(p, x, y):
    """Of a loop over the features: backwards it starts from nobody's numbers."""
    return over_features(p, x, jnp.zeros(5))


def one_over_features(p, x, y):
    return last_state(p, x, y) * y.sum()


def over_features(p, x, start):
    return lax.scan(lambda h, e: (jnp.tanh(h @ p["r"] + e), None), start, x)[0].sum()


def one_masked(p, x, y, mask):
    return jnp.sum((x @ p["a"][:, :4] * mask + p["b"][:4] * mask) * y.sum())


def mapped(each):
    return jax.grad(lambda p, x, y: jnp.mean(lax.map(lambda xy: each(p, *xy), (x, y))))


def mean_of(p, x, y):
    return jnp.mean(jax.vmap(one, (None, 0, 0))(p, x, y))


def microbatched_loss(p, x, y):
    parts = x.reshape(3, 2, -1), y.reshape(3, 2, -1)
    return lax.scan(lambda total, part: (total + mean_of(p, *part), None), 0.0, parts)[0] / 3


def accumulated(p, x, y):
    """Gradients added up over microbatches, which are contiguous."""
    parts = x.reshape(3, 2, -1), y.reshape(3, 2, -1)

    def step(total, part):
        return jax.tree.map(lambda t, g: t + g / 3, total, jax.grad(mean_of)(p, *part)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, p), parts)[0]


def strided(p, x, y):
    """Gradients stacked over microbatches, which take every third example."""
    parts = x.reshape(2, 3, -1).swapaxes(0, 1), y.reshape(2, 3, -1).swapaxes(0, 1)
    stacked = lax.map(lambda part: jax.grad(mean_of)(p, *part), parts)
    return jax.tree.map(lambda g: g.mean(0), stacked)


def masked_by_position(p, x, y):
    return jnp.mean(lax.map(lambda xym: one_masked(p, *xym), (x, y, MASK)))


def numbered(p, x, y):
    """Examples taken by a number that is itself scanned."""
    return lax.scan(lambda total, i: (total + one(p, x[i], y[i]), None), 0.0, jnp.arange(6))[0] / 6


def running_mean(p, x, y):
    """Each example weighs what later ones leave of it, a product over the steps."""

    def step(state, xy):
        mean, count = state
        return (mean + (last_state(p, *xy) - mean) / (count + 1), count + 1), None

    return lax.scan(step, (0.0, 0.0), (x, y))[0][0]


@cache
def examples_of(each):
    """The examples' gradients of a loss of one example, which has a mask of its own or none."""
    more = [MASK] if each is one_masked else []
    return jax.jit(jax.vmap(jax.grad(each), (None, 0, 0, *[0] * len(more))))(PARAMS, X, Y, *more)


# Each with the loss of one example.
CASES = {
    "map": (mapped(one), one),
    "map with a branch": (mapped(one_branching), one_branching),
    "microbatches in the loss": (jax.grad(microbatched_loss), one),
    "gradients accumulated": (accumulated, one),
    "gradients stacked": (strided, one),
    "added up by number": (jax.grad(numbered), one),
    "loops over features": (mapped(one_over_features), one_over_features),
    "a running mean of loops over features": (jax.grad(running_mean), last_state),
    "masks by position": (jax.grad(masked_by_position), one_masked),
}


@pytest.mark.first(1)
@pytest.mark.parametrize(("gradient", "each"), CASES.values(), ids=CASES.keys())
def test_every_example_counts_once(gradient, each):
    asked = {"squares": hs.second_moment(), "absolute": hs.mean_abs()}
    found, means = hs.rewrite(gradient, batch_argnums=(1, 2), statistics=asked)(PARAMS, X, Y)
    for name, g in examples_of(each).items():
        np.testing.assert_allclose(
            found[name], g.mean(0), atol=1e-5 * float(jnp.abs(g).max()) + 1e-7
        )
        for kind, values in (("squares", g**2), ("absolute", jnp.abs(g))):
            scale = float(jnp.abs(values).max()) + 1e-6
            np.testing.assert_allclose(means[kind][name], values.mean(0), atol=1e-5 * scale)


MAX_NORM = 0.5
REAL = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
STATISTIC = hs.clipped_mean(MAX_NORM)


def drawn(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


PARAMS_OF_PADDING = {"w": drawn(3, 2), "s": np.float32(0.7), "unused": np.float32(1)}
X_OF_PADDING = drawn(len(REAL), 3)


def square_sum(rows, real):
    return jnp.sum(jnp.sum(rows**2, -1) * real)


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
    return hs.grad(loss, statistics=STATISTIC, **options)(PARAMS_OF_PADDING, X_OF_PADDING, REAL)[1]


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
