"""Buffers that loops write step by step: a step may find a constant where another finds an
example's value. A batch of copies of one example is the oracle, where all are treated alike.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

import hlo_surgery as hs

B, SLOTS, WIDTH = 6, 3, 3
RNG = np.random.default_rng(0)
PARAMS = {
    name: RNG.normal(size=size).astype(np.float32)
    for name, size in [("w", WIDTH), ("b", WIDTH), ("v", (WIDTH, WIDTH))]
}
X = jnp.asarray(RNG.normal(size=(B, WIDTH)), jnp.float32)
PAIRS = (SLOTS, B // SLOTS, WIDTH)
STATISTICS = {"each": hs.per_example(), "norms": hs.norms()}


def head(p, rows):
    return jnp.sum(jnp.tanh(rows @ p["v"] + p["b"]) * p["w"])


def ring(x, start, ticks, write):
    """A ring of the last microbatches, of which the last few ticks hold constants."""
    fed = jnp.concatenate([x.reshape(PAIRS), jnp.full((ticks - SLOTS, *PAIRS[1:]), 0.5)])

    def step(slots, tick):
        rows, number = tick
        return slots.at[number % SLOTS].set(write(rows)), slots[(number + 1) % SLOTS]

    return lax.scan(step, jnp.full(PAIRS, start), (fed, jnp.arange(ticks)))


def written_over(p, x):
    """The first microbatch's slot holds a constant in the end."""
    return head(p, ring(x, 0.0, SLOTS + 1, lambda rows: jnp.tanh(rows * p["w"]))[0])


def read_before_all_is_written(p, x):
    return head(p, ring(x, 1.0, 2 * SLOTS, lambda rows: rows)[1])


def zeros_that_are_read(p, x):
    """Two of three ticks read zeros, of which the head makes constants."""
    return head(p, ring(x, 0.0, SLOTS, lambda rows: rows)[1])


def zeros_that_are_read_behind(p, x):
    def step(slots, tick):
        row, number = tick
        slots = slots.at[number].set(row)
        return slots, slots[(number + 1) % B]

    return head(p, lax.scan(step, jnp.zeros((B, WIDTH)), (x, jnp.arange(B)))[1])


def zeros_that_are_read_beside_sums(p, x):
    def step(slots, tick):
        row, number = tick
        return slots.at[number].add(row), slots[(number + 1) % B]

    return head(p, lax.scan(step, jnp.zeros((B, WIDTH)), (x, jnp.arange(B)))[1])


def a_column_and_rows_in_turn(p, x):
    """Behind the loop the first column is one in all rows but the last."""

    def step(rows, tick):
        row, number = tick
        return rows.at[:, 0].set(1.0).at[number].add(row), None

    return head(p, lax.scan(step, jnp.zeros((B, WIDTH)), (x, jnp.arange(B)))[0])


def some_rows_in_turn(p, x):
    h = jnp.tanh(x * p["w"])
    return head(p, lax.fori_loop(0, 2, lambda i, h: h.at[i].set(1.0), h))


def one_row_again_and_again(p, x):
    put = lambda h, _: (h.at[0].set(1.0), None)  # noqa: E731
    return head(p, lax.scan(put, jnp.tanh(x * p["w"]), length=2)[0])


def one_row_of_a_later_step(p, x):
    h = jnp.tanh(x * p["w"])
    rows = lax.scan(lambda _, h: (h, None), h, jnp.stack([h, h.at[0].set(1.0)]))[0]
    return head(p, rows)


CONSTANTS_OF_SOME = [
    written_over,
    read_before_all_is_written,
    zeros_that_are_read,
    zeros_that_are_read_behind,
    zeros_that_are_read_beside_sums,
    a_column_and_rows_in_turn,
    some_rows_in_turn,
    one_row_again_and_again,
    one_row_of_a_later_step,
]


def all_rows_in_turn(p, x):
    """Behind the loop nothing is left of the ones."""
    put = lambda i, h: h.at[i].set(jnp.tanh(x[i] * p["w"]))  # noqa: E731
    return head(p, lax.fori_loop(0, B, put, jnp.ones((B, WIDTH))))


def a_column_in_turn(p, x):
    put = lambda i, h: h.at[:, i].set(1.0)  # noqa: E731
    return head(p, lax.fori_loop(0, 2, put, jnp.tanh(x * p["w"])))


def a_cache(p, x):
    """Each step reads what the steps before have written, and ones where none has."""

    def step(cache, place):
        cache = cache.at[:, place].set(x[:, place] * p["w"][0])
        return cache, jnp.tanh(cache * p["b"])

    return head(p, lax.scan(step, jnp.ones((B, WIDTH)), jnp.arange(WIDTH))[1])


def a_state_from_ones(p, x):
    step = lambda h, column: (jnp.tanh(h * p["b"] + column[:, None] * p["w"]), h)  # noqa: E731
    return head(p, lax.scan(step, jnp.ones((B, WIDTH)), x.T)[1])


def a_state_for_each(p, x):
    def one(row):
        step = lambda h, number: (jnp.tanh(h * p["b"] + number * p["w"]), h)  # noqa: E731
        return head(p, lax.scan(step, p["b"], row)[1])

    return jnp.sum(lax.map(one, x))


ALIKE = [all_rows_in_turn, a_column_in_turn, a_cache, a_state_from_ones, a_state_for_each]
