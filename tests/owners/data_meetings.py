"""Small programs in which data of the batch is no constant of all: each is a loss of (w [3, 4],
x [8, 3]), or what a function returns as a gradient of v [3].
"""

import jax.numpy as jnp
from jax import lax

from tests.programs.data_moves import B, energy, hidden


def features(w, x):
    return hidden(w, x)[:, :3]


def in_halves(met):
    return lambda w, x: jnp.sum(jnp.tanh(features(w, x).reshape(2, 4, 3) * met(x.reshape(2, 4, 3))))


def beside_positions(w, x):
    """Weights of the rows, of which the sum is no data, and a sorted sum that is."""
    weights = jnp.sin(jnp.arange(1.0, B + 1)) * jnp.abs(w).sum()
    scale = lax.stop_gradient(weights.sum() + jnp.sort(x.sum(1)))
    rows = energy(w, x * scale[:, None])
    return rows + jnp.sum(lax.stop_gradient(weights) * (x @ w).sum(1))


# What no parameter reaches is a constant where examples meet in it; here each meets another.
OF_DATA = {
    "a maximum of each half": in_halves(lambda x: x.max(1, keepdims=True)),
    "a maximum over halves": in_halves(lambda x: x.max(0, keepdims=True)),
    "a maximum of every other row": lambda w, x: jnp.sum(
        jnp.tanh(jnp.tile(features(w, x), (2, 1)) * jnp.tile(x.reshape(4, 2, 3).max(0), (8, 1)))
    ),
    "features that data of all picks": lambda w, x: jnp.sum(
        jnp.take_along_axis(hidden(w, x), jnp.argsort(x, 0), 1)
    ),
    "features at places that data of all says": lambda w, x: jnp.sum(
        jnp.tanh(features(w, x)[jnp.arange(B)[:, None], jnp.argsort(x, 0)])
    ),
    "rows of sorted data at own numbers": lambda w, x: jnp.sum(
        hidden(w, x)[:, 0] * jnp.sort(x, 0)[jnp.arange(B), jnp.argmax(hidden(w, x)[:, :3], 1)]
    ),
    "the largest of own features and sorted ones": lambda w, x: jnp.sum(
        hidden(w, x)[:, 0] * jnp.concatenate([x[:, :2], jnp.sort(x, 0)[:, 2:]], 1).max(1)
    ),
    "beside a sum over positions": beside_positions,
    "sorted, one by one": lambda w, x: jnp.sum(
        lax.map(lambda pair: energy(w, pair[0] * pair[1]), (x, jnp.sort(x, 0)))
    ),
    "sorted, in a loop of Python": lambda w, x: sum(
        energy(w, x[i] * jnp.sort(x, 0)[i]) for i in range(B)
    ),
    "cumulated": lambda w, x: jnp.sum(hidden(w, x) * jnp.cumsum(x.sum(1))[:, None]),
    "a row of sorted data at each step": lambda w, x: lax.fori_loop(
        0, B, lambda i, s: s + energy(w, x[i] * jnp.sort(x, 0)[i]), 0.0
    ),
}


def one_by_one(term):
    """Sums up a term of each example's and of as many rows of sorted data."""

    def gradient(v, x):
        def step(total, pair):
            example, row = pair
            return total + term(jnp.tanh(example * v), row), None

        return lax.scan(step, jnp.zeros(3), (x, jnp.sort(x, 0)))[0]

    return gradient


# What a function returns as the gradient of v: data of the batch is, or may be, a term of it.
TERMS = {
    "in a second branch": lambda v, x: (
        (x * v).sum(0) + lax.cond(v[0] > 0, lambda: v, lambda: jnp.max(x, 0))
    ),
    "in place of the examples' rows": lambda v, x: jnp.sum(
        lax.cond(v[0] > 0, lambda: x, lambda: jnp.sort(x, 0)) * v, 0
    ),
    "by an example's choice": lambda v, x: (
        (x * v).sum(0) + lax.cond(x[0, 0] > 0, lambda: jnp.max(x, 0), lambda: jnp.min(x, 0))
    ),
    "by each example's choice, one by one": lambda v, x: lax.scan(
        lambda total, row: (total + lax.cond(row[0] > 0, lambda: x.max(0), lambda: x.min(0)), None),
        jnp.zeros(3),
        x,
    )[0],
    "sorted, added at each step": one_by_one(jnp.add),
    "from a loop's second step on": lambda v, x: (
        (x * v).sum(0) + lax.fori_loop(0, 3, lambda i, s: jnp.max(x, 0), jnp.zeros(3))
    ),
}
