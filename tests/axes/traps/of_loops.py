"""Traps of loops and branches: state that goes on from example to example, and branches."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.axes.traps.of_places import hidden, labels
from tests.axes.traps.traps import B, exact, mixes, unshown


def total(w, e):
    return jnp.sum(hidden(w, e) ** 2)


def halves(x):
    return x.reshape(2, -1, 3)


@exact
def one_by_one(w, x):
    return jnp.mean(lax.map(lambda e: total(w, e), x))


@exact
def one_by_one_backwards(w, x):
    return lax.scan(lambda c, e: (c + total(w, e), None), 0.0, x, reverse=True)[0] / len(x)


@exact
def one_by_one_recomputed(w, x):
    step = jax.checkpoint(lambda c, e: (c + total(w, e), None))
    return lax.scan(step, 0.0, x)[0] / len(x)


@mixes
def running_sum(w, x):
    return jnp.mean(lax.scan(lambda s, e: (s + e, total(w, s * e)), jnp.ones(3), x)[1])


@mixes
def running_maximum(w, x):
    step = lambda s, e: (jnp.maximum(s, e), total(w, s * e))  # noqa: E731
    return jnp.mean(lax.scan(step, jnp.zeros(3), x)[1])


@mixes
def running_average_of_features(w, x):
    def step(mean, e):
        h = hidden(w, e)
        mean = 0.9 * mean + 0.1 * lax.stop_gradient(h)
        return mean, jnp.sum((h - mean) ** 2)

    return jnp.mean(lax.scan(step, jnp.zeros(3), x)[1])


@mixes
def recurrent_over_the_batch(w, x):
    return jnp.mean(lax.scan(lambda h, e: (jnp.tanh(h + e @ w),) * 2, jnp.zeros(3), x)[1])


@mixes
def a_count_of_the_examples_so_far(w, x):
    step = lambda n, e: (n + (e[0] > 0), total(w, e) * n)  # noqa: E731
    return jnp.mean(lax.scan(step, 0, x)[1])


@mixes
def the_one_before(w, x):
    def step(i, c):
        return c + jnp.sum(hidden(w, x[i]) * hidden(w, x[i - 1]))

    return lax.fori_loop(0, B, step, 0.0) / B


@mixes
def two_orders_at_once(w, x):
    step = lambda c, e: (c + jnp.sum(hidden(w, e[0]) * hidden(w, e[1])), None)  # noqa: E731
    return lax.scan(step, 0.0, (x, x[::-1]))[0]


@mixes
def as_the_label_says(w, x):
    step = lambda c, t: (c + total(w, x[labels(x)[t]] * x[t]), None)  # noqa: E731
    return lax.scan(step, 0.0, jnp.arange(B))[0] / B


@mixes
def from_one_to_the_next_by_data(w, x):
    """A chain of references."""
    step = lambda i, _: (labels(x)[i], total(w, x[i]))  # noqa: E731
    return jnp.mean(lax.scan(step, 0, None, length=B)[1])


@mixes
def a_buffer_of_the_last_ones(w, x):
    def step(buffer, e):
        buffer = jnp.concatenate([buffer[1:], hidden(w, e)[None]])
        return buffer, jnp.sum(buffer[0] * buffer[1])

    return jnp.mean(lax.scan(step, jnp.zeros((2, 3)), x)[1])


@mixes
def a_buffer_filled_with_the_one_before(w, x):
    h = hidden(w, x)
    write = lambda i, out: out.at[i].set(h[i] * h[(i + 1) % B])  # noqa: E731
    return jnp.mean(lax.fori_loop(0, B, write, jnp.zeros_like(h)))


@exact
def a_buffer_filled_with_each_ones_own(w, x):
    h = lax.stop_gradient(hidden(w, x))
    write = lambda i, out: out.at[i].set(h[i] ** 2)  # noqa: E731
    return jnp.mean(lax.fori_loop(0, len(x), write, jnp.zeros_like(h)) * hidden(w, x))


@mixes
def a_buffer_read_while_it_fills(w, x):
    def step(i, state):
        out, c = state
        return out.at[i].set(hidden(w, x[i])), c + jnp.sum(out * x[i])

    return lax.fori_loop(0, B, step, (jnp.zeros_like(x), 0.0))[1] / B


@mixes
def each_beside_the_whole_batch(w, x):
    return jnp.mean(lax.map(lambda e: jnp.sum(jax.nn.softmax(hidden(w, x) @ e)[0]), x))


@mixes
def loops_over_pairs(w, x):
    inner = lambda a: lax.map(lambda b: jnp.sum(hidden(w, a) * hidden(w, b)), x)  # noqa: E731
    return jnp.mean(lax.map(inner, x))


@mixes
def descending_step_by_step(w, x):
    step = lambda v, e: (v - 0.1 * jax.grad(total)(v, e), None)  # noqa: E731
    return jnp.sum(lax.scan(step, w, x)[0] ** 2)


@mixes
def weights_that_examples_change(w, x):
    """Fast weights, of an outer product for each example."""
    step = lambda v, e: (v + 0.1 * jnp.outer(e, hidden(w, e)), total(v, e))  # noqa: E731
    return jnp.mean(lax.scan(step, w, x)[1])


@exact
def microbatches(w, x):
    parts = x.reshape(min(2, len(x)), -1, 3)
    return lax.scan(lambda c, p: (c + total(w, p), None), 0.0, parts)[0] / len(x)


@exact
def microbatches_of_microbatches(w, x):
    inner = lambda c, p: (c + total(w, p), None)  # noqa: E731
    outer = lambda c, p: (c + lax.scan(inner, 0.0, p)[0], None)  # noqa: E731
    return lax.scan(outer, 0.0, x.reshape(min(2, len(x)), -1, 1, 3))[0] / len(x)


@mixes
def microbatches_with_moments_of_their_own(w, x):
    """Ghost batch norm."""
    norm = lambda p: jnp.sum(jnp.tanh(p @ w - (p @ w).mean(0)) ** 2)  # noqa: E731
    return jnp.mean(lax.map(norm, halves(x)))


@mixes
def microbatches_with_a_state(w, x):
    step = lambda s, p: (s + jnp.sum(p), total(w, p * s))  # noqa: E731
    return jnp.mean(lax.scan(step, 1.0, halves(x))[1])


@mixes
def microbatches_squared(w, x):
    return jnp.mean(lax.map(lambda p: jnp.mean(hidden(w, p)) ** 2, halves(x)))


@mixes
def microbatches_weighed_by_the_loss_so_far(w, x):
    step = lambda c, p: (c + total(w, p) * (1 + lax.stop_gradient(c)), None)  # noqa: E731
    return lax.scan(step, 0.0, halves(x))[0]


@mixes
def the_same_place_of_all_microbatches(w, x):
    """Scanned over the wrong dimension, and normalised there."""
    parts = jnp.swapaxes(halves(x), 0, 1)
    return jnp.mean(lax.map(lambda p: jnp.sum(jax.nn.softmax(p @ w, 0)[0]), parts))


@mixes
def a_remainder_beside_the_others(w, x):
    most = lax.scan(lambda c, e: (c + total(w, e), None), 0.0, x[:3])[0]
    return most * jnp.mean(hidden(w, x[3:]))


@exact
def parts_added_up(w, x):
    most = lax.scan(lambda c, e: (c + total(w, e), None), 0.0, x[:-1])[0]
    return (most + total(w, x[-1:])) / len(x)


TIMES, LAYERS = (B, B, 3), (B, 3, 3)


@exact(x=TIMES)
def as_many_times_as_examples(w, x):
    step = lambda h, e: (jnp.tanh(h + e @ w), None)  # noqa: E731
    h = jnp.zeros((len(x), 3))
    return jnp.mean(lax.scan(step, h, jnp.swapaxes(x, 0, 1))[0])


@mixes(x=TIMES)
def times_for_examples(w, x):
    """Recurrent along the batch, since nothing was transposed."""
    step = lambda h, e: (jnp.tanh(h + e @ w), None)  # noqa: E731
    return jnp.mean(lax.scan(step, jnp.zeros((B, 3)), x)[0])


@exact(w=LAYERS)
def as_many_layers_as_examples(w, x):
    return jnp.mean(lax.scan(lambda h, v: (jnp.tanh(h @ v), None), x, w)[0])


@mixes(w=LAYERS)
def layers_that_centre(w, x):
    step = lambda h, v: (jnp.tanh(h @ v - (h @ v).mean(0)), None)  # noqa: E731
    return jnp.mean(lax.scan(step, x, w)[0] ** 2)


@exact(w=LAYERS, own=lambda w, x, b: total(w[b], x[b]) + jnp.sum(w[b] ** 2))
def a_layer_for_each_example(w, x):
    """And its penalty, in the example's own step."""
    step = lambda c, a: (c + total(a[0], a[1]) + jnp.sum(a[0] ** 2), None)  # noqa: E731
    return lax.scan(step, 0.0, (w, x))[0] / B


@mixes
def examples_rotate(w, x):
    def step(h, _):
        return jnp.roll(jnp.tanh(h @ w), 1, 0), None

    return jnp.mean(lax.scan(step, x, None, length=2)[0] * x)


@mixes
def batch_decides_the_branch(w, x):
    return lax.cond(jnp.mean(x @ w) > 0.1, lambda: total(w, x), lambda: total(w, 2 * x)) / B


@mixes
def data_decides_the_branch(w, x):
    return lax.cond(jnp.sum(x) > 1, lambda: total(w, x), lambda: total(w, 2 * x)) / B


@exact
def each_decides_its_branch(w, x):
    one = lambda e: lax.cond(e[0] > 0, lambda: total(w, e), lambda: total(w, 2 * e))  # noqa: E731
    return jnp.mean(lax.map(one, x))


@mixes
def the_one_before_decides_the_branch(w, x):
    def step(last, e):
        return e[0], lax.cond(last > 0, lambda: total(w, e), lambda: total(w, 2 * e))

    return jnp.mean(lax.scan(step, 1.0, x)[1])


@mixes
def the_largest_decides_the_expert(w, x):
    expert = jnp.argmax(x[:, 0])
    return lax.switch(expert, [lambda s=s: total(s * w, x) for s in range(B)]) / B


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b] * 1.1 ** jnp.sum(x[:, 0] > 0))), holds_data=True)
def as_often_as_the_batch_has_positive_ones(w, x):
    """A number of data, the same for all."""
    times = jnp.sum(x[:, 0] > 0)
    return jnp.mean(hidden(w, x * lax.fori_loop(0, times, lambda _, h: 1.1 * h, 1.0)))


@mixes
def a_swarm_that_flocks(w, x):
    """Two steps of particles, each drawn to the mean."""
    step = lambda h, _: (h + 0.1 * jnp.tanh(h.mean(0) - h), None)  # noqa: E731
    return jnp.mean(lax.scan(step, x @ w, None, length=2)[0] ** 2)


@mixes(x=(B, B), w=(B, B))
def swapped_in_every_step(w, x):
    step = lambda h, _: (lax.stop_gradient(h.T), None)  # noqa: E731
    return jnp.mean(hidden(w, x * lax.scan(step, x @ w, None, length=3)[0]))


@mixes(x=(6,), w=(), count=2, options={"rows_per_example": 3})
def one_order_or_the_other(w, x):
    turned = x.reshape(2, 3).T.reshape(6)
    chosen = lax.cond(w > -5, lambda: x, lambda: turned)
    return jnp.mean(jnp.tanh(w * turned) * chosen)


@unshown(w=(3,))
def a_shift_in_discounted_steps(w, x):
    return lax.scan(lambda c, e: (0.9 * c + jnp.sum(e + w), None), 0.0, x)[0]


@unshown(w={"b": (3,), "v": (2,)})
def a_shift_in_discounted_steps_beside_a_penalty(p, x):
    return a_shift_in_discounted_steps(p["b"], x) + jnp.sum(p["v"] ** 2)


@exact(own=lambda p, x, b: total(p["w"], x[b]) + jnp.sum(p["v"] ** 2), w={"w": (3, 3), "v": (3, 3)})
def a_penalty_on_what_meets_none(p, x):
    return one_by_one(p["w"], x) + jnp.sum(p["v"] ** 2)


@exact
def a_penalty_in_every_layer(w, x):
    step = lambda t, c: 0.5 * c + jnp.sum(w ** (t + 1))  # noqa: E731
    return lax.fori_loop(0, 3, step, jnp.mean(hidden(w, x)))


@exact(own=lambda w, x, b: w[0, 0] * total(w, x[b]))
def microbatches_unrolled(w, x):
    """The factor's gradient is the losses of all steps, one behind the other."""
    step = lambda c, rows: (c + w[0, 0] * total(w, rows), None)  # noqa: E731
    return lax.scan(step, 0.0, halves(x), unroll=2)[0] / B


@mixes
def data_so_far_or_of_all(w, x):
    """Which of them is a parameter's choice."""
    whole = jnp.sum(x)

    def step(c, e):
        c = c + jnp.sum(e)
        return c, total(w, e) * lax.cond(jnp.sum(w**2) > 0, lambda: c, lambda: whole)

    return jnp.mean(lax.scan(step, 0.0, x)[1])


@mixes
def steps_with_the_label_of_the_mirrored(w, x):
    step = lambda i, c: c + hidden(w, x[i])[labels(x)[B - 1 - i]]  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0) / B
