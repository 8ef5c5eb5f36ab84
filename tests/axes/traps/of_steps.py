"""Traps of steps and parts: one example at a time, or some, and constants beside them.

Beside constants losses are linear: no example reaches the bias' gradient, constants alone do.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.axes.traps.of_constants import BIASED, WEIGHTS, out
from tests.axes.traps.of_places import hidden, labels
from tests.axes.traps.traps import B, D, drawn, exact, mixes, unshown

MATRIX = drawn((B, B), 9)


def one(p, e):
    return jnp.mean(out(p, e)) / B


def weighed(weights):
    """Example b's own loss, with its number among these."""
    return lambda p, x, b: B * jnp.asarray(weights)[b] * one(p, x[b])


def added(step, start=0.0):
    """What a scan over the examples ends with."""
    return lambda p, xs: lax.scan(lambda c, e: (step(p, c, e), None), start, xs)[0]


@exact(own=weighed(WEIGHTS / WEIGHTS.sum()), **BIASED)
def weights_by_their_sum(p, x):
    weights = jnp.exp(jnp.log(WEIGHTS))
    return added(lambda p, c, a: c + a[0] / weights.sum() * one(p, a[1]))(p, (weights, x))


@exact(own=lambda w, x, b: jnp.mean(x**2) * jnp.sum(hidden(w, x[b])), holds_data=True)
def the_mean_of_data_in_each_step(w, x):
    mean = jnp.mean(x**2) / B
    return added(lambda w, c, e: c + mean * jnp.sum(hidden(w, e)))(w, x)


@exact(own=lambda w, x, b: B * (jnp.sum(hidden(w, x[b])) + jnp.sum(w[b % D] ** 2)))
def a_penalty_on_one_row_in_each_step(w, x):
    step = lambda i, c: c + jnp.sum(hidden(w, x[i])) + jnp.sum(w[i % D] ** 2)  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0)


@unshown(**BIASED)
def discounted_so_far(p, x):
    return added(lambda p, c, e: 0.9 * c + one(p, e))(p, x)


@unshown(**BIASED)
def with_alternating_signs(p, x):
    return added(lambda p, c, e: one(p, e) - c)(p, x)


@unshown(**BIASED)
def by_turns(p, x):
    return added(lambda p, c, e: (c[1], c[0] + one(p, e)), (0.0, 0.0))(p, x)[0]


@unshown(**BIASED)
def scaled_by_later_weights(p, x):
    return added(lambda p, c, a: c * a[1] + one(p, a[0]))(p, (x, WEIGHTS))


@unshown(**BIASED)
def begun_anew_at_a_step(p, x):
    step = lambda i, c: jnp.where(i == 2, 0.0, c) + one(p, x[i])  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0)


@unshown(**BIASED)
def mean_of_running_sums(p, x):
    return jnp.mean(lax.scan(lambda c, e: (c + one(p, e),) * 2, 0.0, x)[1])


@unshown(**BIASED)
def weighed_mean_of_running_sums(p, x):
    sums = lax.scan(lambda c, e: (c + one(p, e),) * 2, 0.0, x)[1]
    return jnp.sum(WEIGHTS * sums)


@unshown(**BIASED)
def up_to_the_last_step(p, x):
    step = lambda c, a: (c + one(p, a[0]), jnp.where(a[1] == B - 1, c, 0.0))  # noqa: E731
    return jnp.sum(lax.scan(step, 0.0, (x, jnp.arange(B)))[1])


@unshown(**BIASED)
def a_loop_over_some(p, x):
    return added(lambda p, c, e: c + one(p, e))(p, x[:2])


@unshown(**BIASED)
def one_of_them_alone(p, x):
    return one(p, x[0])


@unshown(**BIASED)
def one_by_one_with_weights(p, x):
    return sum((i + 1) * one(p, x[i]) for i in range(B))


@exact(own=weighed([1, 1, 0, 0]), **BIASED)
def a_part_of_them_alone(p, x):
    return jnp.sum(out(p, x[:2])) / x.size


@exact(own=weighed(0.9 ** np.arange(B)), **BIASED)
def a_weight_that_decays(p, x):
    """A weight for each step, which is no sum."""
    step = lambda p, c, e: (0.9 * c[0], c[1] + c[0] * one(p, e))  # noqa: E731
    return added(step, (1.0, 0.0))(p, x)[1]


@exact(own=weighed([1, 3, 6, 10]), **BIASED)
def weights_added_up_by_the_steps(p, x):
    step = lambda p, c, a: (a[1] + c[0], c[1] + (a[1] + c[0]) * one(p, a[0]))  # noqa: E731
    return added(step, (0.0, 0.0))(p, (x, WEIGHTS))[1]


@exact(own=weighed([1, 0, 1, 0]), **BIASED)
def every_other_step(p, x):
    step = lambda p, c, e: (~c[0], c[1] + jnp.where(c[0], one(p, e), 0.0))  # noqa: E731
    return added(step, (True, 0.0))(p, x)[1]


def uniform(key, number):
    for _ in range(number):
        key = jax.random.split(key)[0]
    return jax.random.uniform(jax.random.split(key)[1])


def with_noise_of_its_own(p, x, b):
    noise = jnp.stack([uniform(jax.random.key(0), i) for i in range(B)])
    return B * noise[b] * one(p, x[b])


@exact(own=with_noise_of_its_own, **BIASED)
def noise_of_each_step(p, x):
    def step(p, c, e):
        key, own = jax.random.split(c[0])
        return key, c[1] + jax.random.uniform(own) * one(p, e)

    return added(step, (jax.random.key(0), 0.0))(p, x)[1]


@exact(own=weighed([0, 0, 1, 2]), **BIASED)
def steps_over_the_last_with_the_first_weights(p, x):
    return added(lambda p, c, a: c + a[1] * one(p, a[0]))(p, (x[2:], WEIGHTS[:2]))


@exact(own=weighed([0, 0, 1, 2]), **BIASED)
def the_last_with_the_first_weights(p, x):
    return jnp.sum(WEIGHTS[:2, None] * out(p, x[2:])) / x.size


@exact(own=weighed([1, 2, 1, 2]), **BIASED)
def weights_within_a_microbatch(p, x):
    return jnp.mean(WEIGHTS[:2, None] * out(p, x.reshape(2, 2, D)))


@exact(own=weighed([1, 1, 2, 2]), **BIASED)
def weights_of_microbatches(p, x):
    return jnp.mean(WEIGHTS[:2, None, None] * out(p, x.reshape(2, 2, D)))


@exact(own=weighed([2, 3, 4, 1]), **BIASED)
def the_next_ones_weight(p, x):
    weights = jnp.asarray(WEIGHTS)
    return lax.fori_loop(0, B, lambda i, c: c + weights[(i + 1) % B] * one(p, x[i]), 0.0)


@exact(own=weighed([3, 4, 1, 2]), **BIASED)
def weights_in_blocks_of_another_order(p, x):
    def step(i, c):
        weights = lax.dynamic_slice_in_dim(jnp.asarray(WEIGHTS), 2 - 2 * i, 2)
        return c + jnp.sum(weights[:, None] * out(p, lax.dynamic_slice_in_dim(x, 2 * i, 2)))

    return lax.fori_loop(0, 2, step, 0.0) / x.size


@exact(own=weighed(MATRIX.T @ WEIGHTS), **BIASED)
def weights_behind_a_graph(p, x):
    return jnp.sum(WEIGHTS[:, None] * (MATRIX @ out(p, x))) / x.size


def own_weight(p, x, b):
    return jnp.asarray(WEIGHTS)[labels(x)[b]] * jnp.mean(out(p, x[b]))


@exact(own=own_weight, **BIASED)
def weights_by_label(p, x):
    return jnp.mean(jnp.asarray(WEIGHTS)[labels(x)][:, None] * out(p, x))


@exact(own=weighed([1, 1.5, 2.5, 3]), **BIASED)
def weights_tiled_beside_examples_repeated(p, x):
    """[B * 2] beside [2 * B]: places 2 b and 2 b + 1 are example b's."""
    weights = np.array([1, 1, 1, 2, 2, 3, 3, 3], np.float32)
    return jnp.mean(weights[:, None] * out(p, jnp.repeat(x, 2, 0)))


@exact(own=weighed([4, 3, 2, 1]), **BIASED)
def weighed_behind_a_reversal(p, x):
    return jnp.mean(WEIGHTS[:, None] * out(p, x)[::-1])


@exact(own=lambda w, x, b: jnp.sum(hidden(w, x[b]) ** (b + 1)))
def stacked_one_by_one(w, x):
    return jnp.mean(jnp.stack([jnp.sum(hidden(w, x[i]) ** (i + 1)) for i in range(B)]))


@exact(own=lambda w, x, b: jnp.sum(hidden(w, x[b]) * x[b]))
def stacked_beside_the_batch(w, x):
    rows = jnp.stack([hidden(w, x[i]) for i in range(B)])
    return jnp.mean(jnp.sum(rows * x, 1))


@mixes
def stacked_in_another_order(w, x):
    rows = jnp.stack([hidden(w, x[i]) for i in (1, 0, 2, 3)])
    return jnp.mean(jnp.sum(rows * x, 1))


@mixes
def one_stacked_twice(w, x):
    rows = jnp.stack([hidden(w, x[i]) for i in (0, 0, 2, 3)])
    return jnp.mean(jnp.sum(rows * x, 1))


@mixes
def stacked_along_the_features(w, x):
    rows = jnp.concatenate([hidden(w, x[i]) for i in range(B)])
    return jnp.mean(rows.reshape(3, B).T * x)


@exact(own=lambda w, x, b: jnp.sum(hidden(w, x[b]) ** 2) * jnp.where(b == 1, 2, 1))
def one_once_more(w, x):
    return jnp.mean(jnp.sum(hidden(w, x) ** 2, 1)) + jnp.sum(hidden(w, x[1]) ** 2) / B


@exact(own=lambda w, x, b: jnp.sum(hidden(w, x[b]) ** 2) * jnp.where(b < 2, 1, 3))
def parts_joined_again(w, x):
    rows = jnp.concatenate([hidden(w, x[:2]) ** 2, 3 * hidden(w, x[2:]) ** 2])
    return jnp.mean(jnp.sum(rows, 1))


@mixes
def parts_joined_the_other_way(w, x):
    rows = jnp.concatenate([hidden(w, x[2:]), hidden(w, x[:2])])
    return jnp.mean(jnp.sum(rows * x, 1))


@exact(own=lambda w, x, b: jnp.sum(hidden(w, x[b]) ** (b + 1)))
def rows_of_a_layer_one_by_one(w, x):
    """Backwards each is put back into its place."""
    h = hidden(w, x)
    return sum(jnp.sum(h[i] ** (i + 1)) for i in range(B)) / B


def decayed(w, e):
    """An example's loss with a penalty of its own."""
    return jnp.sum(hidden(w, e)) + jnp.sum(w**2)


@unshown
def penalties_of_discounted_steps(w, x):
    return added(lambda w, c, e: 0.5 * c + decayed(w, e))(w, x)


@unshown
def a_penalty_of_the_last_step(w, x):
    return added(lambda w, c, e: decayed(w, e))(w, x)


@unshown
def penalties_of_running_sums(w, x):
    return jnp.mean(lax.scan(lambda c, e: (c + decayed(w, e),) * 2, 0.0, x)[1])


@unshown
def a_sum_that_is_read_from_all_steps(w, x):
    return lax.scan(lambda c, e: (c + decayed(w, e),) * 2, 0.0, x)[1][-1]


@exact(own=lambda w, x, b: B * decayed(w, x[b]))
def penalties_of_steps_that_are_added_up(w, x):
    return added(lambda w, c, e: c + decayed(w, e))(w, x)


@unshown
def one_or_a_constant(w, x):
    return lax.cond(w[0, 0] > 0, lambda: jnp.sum(hidden(w, x[0])), lambda: jnp.sum(w**3))


@unshown
def a_penalty_beside_one_example(w, x):
    return jnp.sum(hidden(w, x[0])) + jnp.sum(w**2)


@mixes
def two_rows_of_a_layer(w, x):
    h = hidden(w, x)
    return jnp.sum(h[0] * h[1])


@mixes
def one_put_into_anothers_place(w, x):
    return jnp.sum(jnp.pad(hidden(w, x)[:1], ((2, 1), (0, 0))) * x)


@unshown
def one_put_into_its_place(w, x):
    return jnp.sum(jnp.pad(hidden(w, x)[2:3], ((2, 1), (0, 0))) * x)


@mixes
def data_in_the_place_of_an_example(w, x):
    return jnp.mean(jnp.tanh(x.at[2].set(jnp.max(x)) @ w))


@mixes
def data_where_each_ones_label_says(w, x):
    data = jnp.cumsum(x[:, 0])
    return jnp.mean(hidden(w, x.at[jnp.arange(B), labels(x)].set(data)))


@mixes
def three_sums_of_data(w, x):
    sums = jnp.sum(x, 0)
    return jnp.sum(w) * sums[0] * sums[1] * sums[2]


@mixes
def sums_of_data_contracted(w, x):
    sums = jnp.sum(x, 0)
    return jnp.sum(w @ sums) * jnp.dot(sums, sums)


@mixes
def a_sum_of_data_to_a_power(w, x):
    return jnp.sum(w) * jnp.sum(x) ** 3


def turned(weights):
    return weights.reshape(2, 3).T.reshape(6)


@exact(
    own=lambda p, x, b: turned(turned(jnp.arange(6.0)))[b] * jnp.mean(out(p, x[b])),
    x=(6, D),
    **BIASED,
)
def weights_turned_in_every_step(p, x):
    weights = lax.fori_loop(0, 2, lambda _, c: turned(c), jnp.arange(6.0))
    return jnp.mean(weights[:, None] * out(p, x))


@unshown
def a_schedule_that_is_learned(w, x):
    """Each step's rests on all before, and the start takes of all steps."""
    steps = lax.scan(lambda c, a: (c * c, c + a @ w), w[0, :1] + jnp.zeros(w.shape[1]), x)[1]
    return jnp.mean(steps)


@unshown
def a_start_that_weights_of_the_batch_carry_on(w, x):
    step = lambda c, a: (c * a[1], c + jnp.tanh(a[0] @ w))  # noqa: E731
    return jnp.mean(lax.scan(step, w[0], (x, jnp.asarray([0.5, 0.25, 2.0, 3.0])))[1])
