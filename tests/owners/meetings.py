"""Small programs in which examples meet in some way that is easily missed: each is a loss of
(w [3, 4], x [8, 3]), or what a function returns as a gradient of v [3].
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.data_moves import ORDER, B, energy, hidden

TABLE = np.sin(np.arange(B, dtype=np.float32))
COLUMNS = np.arange(B) % 4


def number(e, w):
    """The example's own number, which parameters reach."""
    return jnp.argmax(e @ w)


def shared_number(w):
    """A place that is not known, and no example's."""
    return jnp.argmax(w[0])


def backwards(of_example):
    """What is made of each example meets the examples in reverse order."""
    return lambda w, x: jnp.sum(hidden(w, x)[:, 0] * jax.vmap(lambda e: of_example(w, e))(x)[::-1])


def one_by_one(of_example):
    """The same in a loop, which vmap would rewrite."""
    return lambda w, x: jnp.sum(hidden(w, x)[:, 0] * lax.map(lambda e: of_example(w, e), x)[::-1])


def counted(w, e):
    """How many rounds a loop takes that ends when one example says."""
    return lax.while_loop(lambda c: c < 9 * jnp.abs(jnp.tanh(e @ w)[0]), lambda c: c + 1, 0.0)


def chosen(w, e):
    return lax.cond((e @ w)[0] > 0, lambda: 1.0, lambda: 2.0)


def looked_up(w, e):
    return lax.dynamic_slice(jnp.asarray(TABLE), (number(e, w),), (1,))[0]


def put(w, e):
    return lax.dynamic_update_slice(jnp.zeros(4), jnp.ones(1), (number(e, w),))[0]


def scattered(w, e):
    return jnp.zeros(4).at[number(e, w)].set(1.0)[0]


def with_all(met):
    """What is made of all rows meets them in reverse order."""
    return lambda w, x: jnp.sum(met(w, hidden(w, x)) * hidden(w, x)[::-1])


def with_own(met):
    return lambda w, x: jnp.sum(met(w, hidden(w, x)) * hidden(w, x))


def first(met):
    return lambda w, x: jnp.sum(met(w, hidden(w, x)) * hidden(w, x)[:1])


def carried_number(w, x):
    """The number of the example before."""

    def step(s, e):
        return number(e, w), energy(w, e) * s

    return jnp.sum(lax.scan(step, 0, x)[1])


def carried_row(w, x):
    return jnp.sum(lax.scan(lambda s, h: (h, h * s), jnp.ones(4), hidden(w, x))[1])


def carried_for_two_steps(w, x):
    def step(s, h):
        return (h, s[0]), h * s[1]

    return jnp.sum(lax.scan(step, (jnp.ones(4), jnp.ones(4)), hidden(w, x))[1])


def of_an_earlier_loop(w, x):
    """Rows of a loop's steps, met in another order by the next."""
    rows = lax.map(lambda e: jnp.tanh(e @ w), x)
    return jnp.sum(lax.map(lambda pair: pair[0] * pair[1], (rows, rows[ORDER])))


def cleared_at_each_step(w, x):
    h = hidden(w, x)

    def step(i, s):
        return s + jnp.sum(lax.dynamic_update_slice(h, jnp.zeros((1, 4)), (i, 0)) * h[::-1])

    return lax.fori_loop(0, B, step, 0.0)


def in_a_second_branch(one, other):
    return lambda w, x: jnp.sum(
        hidden(w, x) * lax.cond(w[0, 0] > 0, lambda: one(hidden(w, x)), lambda: other(hidden(w, x)))
    )


def padded_with_the_last(w, h):
    return lax.pad(h[1:], h[-1, 0], ((1, 0, 0), (0, 0, 0)))


REFUSED = {
    "rounds that an example decides": one_by_one(counted),
    "a constant that an example chooses": one_by_one(chosen),
    "a number that an example looks up": one_by_one(looked_up),
    "a number that examples look up": backwards(looked_up),
    "a place that an example says": one_by_one(put),
    "places that examples say": backwards(scattered),
    "the number of the example before": carried_number,
    "the row of the example before": carried_row,
    "the row of two before": carried_for_two_steps,
    "rows of a loop, permuted": of_an_earlier_loop,
    "overwritten at one step alone": cleared_at_each_step,
    "overwritten somewhere": with_all(
        lambda w, h: lax.dynamic_update_slice(h, jnp.zeros((1, 4)), (shared_number(w), 0))
    ),
    "overwritten element by element": with_all(
        lambda w, h: h.at[np.arange(B), COLUMNS].set(0.0, unique_indices=True)
    ),
    "added to": with_all(lambda w, h: h.at[np.arange(B)].add(1.0)),
    "put somewhere": with_own(
        lambda w, h: lax.dynamic_update_slice(jnp.zeros((B, 4)), h[:1], (shared_number(w), 0))
    ),
    "beside what is put": with_all(
        lambda w, h: lax.dynamic_update_slice(h, jnp.zeros((1, 4)), (2, 0))
    ),
    "beyond the end": with_own(
        lambda w, h: lax.dynamic_update_slice(jnp.zeros((B, 4)), h[2:5], (7, 0))
    ),
    "beside an update without rows": with_all(
        lambda w, h: lax.dynamic_update_slice(h, jnp.zeros((0, 4)), (shared_number(w), 0))
    ),
    "overwritten at one of several places": first(
        lambda w, h: lax.dynamic_update_slice(h, jnp.zeros((1, 4)), (shared_number(w) + 1, 0))[1:2]
    ),
    "beside what is dropped beyond the end": first(
        lambda w, h: h.at[np.array([B])].set(0.0, mode="drop", unique_indices=True)[-1:]
    ),
    "a row that is somewhere": first(
        lambda w, h: lax.dynamic_slice(h, (shared_number(w), 0), (1, 4))
    ),
    "rows that are somewhere": lambda w, x: jnp.sum(
        hidden(w, x)[:4] * hidden(w, x)[jnp.argsort(w[0])]
    ),
    "rows that an example says": with_own(lambda w, h: h[jnp.argmax(h, 1)]),
    "windows of rows": lambda w, x: jnp.sum(
        jax.vmap(lambda i: lax.dynamic_slice(hidden(w, x), (i, 0), (2, 4)))(np.arange(B - 1))
        * hidden(w, x)[:-1, None]
    ),
    "one example's value as padding": with_own(padded_with_the_last),
    "every other row": lambda w, x: jnp.sum(hidden(w, x)[::2] * hidden(w, x)[:4]),
    "from the second row on": lambda w, x: jnp.sum(hidden(w, x)[1::2] * hidden(w, x)[:4]),
    "reversed in a second branch": in_a_second_branch(lambda h: h, lambda h: h[::-1]),
    "mixed in a second branch": in_a_second_branch(lambda h: h, lambda h: h - h.max(0)),
    "rows of unequal runs": lambda w, x: jnp.sum(
        jnp.repeat(hidden(w, x), np.array([1, 2, 1, 1, 1, 1, 1, 2]), 0)
        * jnp.tile(hidden(w, x), (2, 1))[:10]
    ),
    "features as examples": lambda w, x: jnp.sum(hidden(w, x)[:4] * hidden(w, x)[:4].T),
    "columns merged as rows": lambda w, x: jnp.sum(hidden(w, x).T.reshape(B, 4) * hidden(w, x)),
    "groups of three and of two": lambda w, x: jnp.sum(
        hidden(w, x)[:6].reshape(3, 2, 4).max(1) ** 2
    ),
    "the largest added in groups": lambda w, x: jnp.sum(
        jnp.zeros((3, 4)).at[np.array([0, 1, 2, 0, 1, 2, 0, 1])].max(hidden(w, x))
    ),
    "added where another says": lambda w, x: jnp.sum(
        jnp.zeros(4).at[jnp.argmax(hidden(w, x), 1)].add(hidden(w, x[::-1])[:, 0]) * np.arange(4.0)
    ),
    "a sum, squared, of two rows": lambda w, x: jnp.sum((hidden(w, x)[0] + hidden(w, x)[1]) ** 2),
}


def turned(rows):
    """[2, 4, 3] as [4, 2, 3], by a convolution of which each feature is a group."""
    kernel, layouts = jnp.ones((1, 1, 4)), ("NCW", "WIO", "CNW")
    return lax.conv_general_dilated(
        rows, kernel, (1,), "VALID", dimension_numbers=layouts, feature_group_count=4
    )


# What a function returns as the gradient of v: no sum of the examples' terms.
RETURNED = {
    "the larger of a sum and an example's": lambda v, x: lax.reduce(
        jnp.tanh(x * v)[0], jnp.tanh(x * v).sum(), lax.max, (0,)
    ),
    "the last of a loop, squared": lambda v, x: (
        lax.scan(lambda s, e: (s + jnp.tanh(e * v), None), jnp.zeros(3), x)[0] ** 2
    ),
    "the last of a loop beside the first": lambda v, x: (
        x[0] * lax.fori_loop(0, B, lambda i, s: jnp.tanh(x[i] * v), jnp.zeros(3))
    ),
    "all rows beside a loop's that is the first": lambda v, x: jnp.sum(
        jnp.tanh(x * v) * lax.fori_loop(0, 3, lambda i, s: x[0], jnp.zeros(3)), 0
    ),
    "a row that an example picks": lambda v, x: (x * v)[jnp.argmax(x[0])],
    "added where another says": lambda v, x: (
        jnp.zeros(3).at[jnp.argmax(x * v, 1)].add((x * v)[::-1, 0])
    ),
    "the largest at each place": lambda v, x: (
        jnp.zeros(3).at[np.arange(B) % 3].max(jnp.tanh(x * v)[:, 0])
    ),
    "turned by a convolution": lambda v, x: jnp.sum(
        turned((x * v).reshape(2, 4, 3)) * (x * v).reshape(4, 2, 3), (0, 1)
    ),
}


# What a function returns as the gradient of v, with constants that not all examples get.
UNEVEN = {
    "some rows": lambda v, x: (x[:4] + v).sum(0) + x[4:].sum(0),
    "scaled afterwards": lambda v, x: ((x[:4] + v) * 2).sum(0) + x[4:].sum(0),
    "padded": lambda v, x: jnp.pad(x[:4] + v, ((4, 0), (0, 0))).sum(0) + x.sum(0),
    "beside a sum": lambda v, x: x.sum(0) + (x[0] + v),
    "of one example alone": lambda v, x: x[0] + v,
    "in a loop": lambda v, x: lax.fori_loop(0, 3, lambda i, s: s + (x[i] + v), jnp.zeros(3)),
    "in a loop that has some twice": lambda v, x: lax.fori_loop(
        0, 12, lambda i, s: s + jnp.tanh(x[lax.rem(i, B)] * v) + v, jnp.zeros(3)
    ),
    "in a branch": lambda v, x: x.sum(0) + lax.cond(v[0] > 0, lambda: x[0], lambda: x[0] + v),
    "in the other branch": lambda v, x: (
        x.sum(0) + lax.cond(v[0] > 0, lambda: x[0] + v, lambda: x[0])
    ),
    "beside one more term": lambda v, x: jnp.tanh(x * v).sum(0) + 3 * jnp.tanh(x[0] * v) + 3 * v,
    "the last of a loop": lambda v, x: lax.fori_loop(0, 3, lambda i, s: x[i] + v, jnp.zeros(3)),
}


def two_loops(added):
    """A loop over the examples, and one of as many steps that adds something at each."""

    def gradient(v, x):
        own = lax.map(lambda e: jnp.tanh(e * v), x).sum(0)
        more = lax.fori_loop(0, B, lambda i, s: s + added(v, i), jnp.zeros(3))
        return own, more

    return gradient


def until(going):
    """The same with a loop of which the number of steps is not known."""

    def step(v, state):
        return state[0] + 1, state[1] + jnp.asarray(TABLE)[state[0]] * v

    def gradient(v, x):
        own = lax.map(lambda e: jnp.tanh(e * v), x).sum(0)
        return own, lax.while_loop(going, partial(step, v), (0, jnp.zeros(3)))[1]

    return gradient


def by_row(v, x):
    weights = jnp.sin(jnp.arange(1.0, B + 1))[:, None]
    return (x * v * weights).sum(0) + (weights * v).sum(0)


def by_row_of_a_sum(v, x):
    """Weights that are added to a sum of the examples, which is then summed itself."""
    weights = jnp.sin(jnp.arange(1.0, B + 1))[:, None]
    return jnp.sum((x * v * weights).sum(0)[None] + weights * v, 0)


MASKS = np.float32([[1, 0, 1], [0, 1, 1]])


def masked(total):
    """Each half of the batch has a mask, which scales a total of the half, constants and all."""

    def gradient(v, x):
        rows = jnp.tanh(x.reshape(2, 4, 3) * (v * MASKS)[:, None])
        return jnp.sum(total(v, rows) * MASKS, 0)

    return gradient


ROWS_OF_THREE = jnp.sin(jnp.arange(24.0))[:, None]


def picked_of_three(x):
    """One of its own three rows for each example."""
    return 3 * jnp.arange(8) + jnp.argmax(x, 1)


# Weights of the examples' steps or rows in a gradient that no example reaches.
WEIGHED = {
    "by step": two_loops(lambda v, i: jnp.asarray(TABLE)[i] * v),
    "by a number of the step": two_loops(lambda v, i: jnp.sin(1.0 * i) * v),
    "in a loop of unknown length": until(lambda s: jnp.greater(B, s[0])),
    "by step, beside terms": lambda v, x: lax.fori_loop(
        0,
        B,
        lambda i, s: s + jnp.asarray(TABLE)[i] * v,
        lax.map(lambda e: jnp.tanh(e * v), x).sum(0),
    ),
    "by row, beside terms": by_row,
    "rows that examples pick": lambda v, x: (
        jnp.sum(jnp.tanh(x * v)[:, 0] * (ROWS_OF_THREE @ v[None])[picked_of_three(x), 0]) * v,
        (ROWS_OF_THREE @ v[None]).sum(0),
    ),
    "by row of a sum": by_row_of_a_sum,
    "by half, of what a sum starts from": masked(
        lambda v, rows: lax.reduce(rows, v[0], lax.add, (1,))
    ),
    "by half, of what a loop adds": masked(
        lambda v, rows: lax.fori_loop(0, 3, lambda i, s: s + v, rows.sum(1))
    ),
}
