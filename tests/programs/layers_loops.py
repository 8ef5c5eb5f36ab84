"""Layers with loops and branches: stacked weights, a weight at each step, scans over positions."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.layer_table import layer, layers, per_feature, times, width


def steps(s):
    return s.knob % 3 + 1


def stack(s, x, axes):
    """A matrix for each step."""
    return s.param(steps(s), width(x, axes), width(x, axes))


# --- stacked weights


@layer()
def scan_over_layers(s, x, axes):
    bias = s.param(steps(s), width(x, axes))

    def step(h, weights):
        w, b = weights
        return jnp.tanh(times(h, w, axes) + per_feature(b, axes)), None

    return lax.scan(step, x, (stack(s, x, axes), bias))[0], axes


@layer()
def scan_over_layers_backwards(s, x, axes):
    return lax.scan(
        lambda h, w: (jnp.tanh(times(h, w, axes)), None), x, stack(s, x, axes), reverse=True
    )[0], axes


@layer()
def scan_over_rematerialised_layers(s, x, axes):
    step = jax.checkpoint(lambda h, w: (jnp.tanh(times(h, w, axes)), None))
    return lax.scan(step, x, stack(s, x, axes))[0], axes


@layer()
def scan_over_nested_layers(s, x, axes):
    c = width(x, axes)

    def inner(h, w):
        return jnp.tanh(times(h, w, axes)), None

    weights = s.param(steps(s), 2, c, c)
    return lax.scan(lambda h, group: (lax.scan(inner, h, group)[0], None), x, weights)[0], axes


@layer()
def scan_with_all_outputs(s, x, axes):
    outputs = lax.scan(lambda h, w: (jnp.tanh(times(h, w, axes)), h), x, stack(s, x, axes))[1]
    return outputs.sum(0), axes


@layer()
def scan_over_weights_used_outside(s, x, axes):
    weights = stack(s, x, axes)
    h, _ = lax.scan(lambda h, w: (jnp.tanh(times(h, w, axes)), None), x, weights)
    return times(h, weights[0], axes), axes


@layer()
def scan_over_cumulated_weights(s, x, axes):
    """The weight of a step is a decayed sum of the steps' parameters so far."""

    def step(carry, w):
        h, whole = carry
        whole = 0.5 * whole + w
        return (jnp.tanh(times(h, whole, axes)), whole), None

    weights = stack(s, x, axes)
    return lax.scan(step, (x, jnp.zeros_like(weights[0])), weights)[0][0], axes


def over_slices(index, slices, trips):
    """At each step the slice of this number."""

    def layer(s, x, axes):
        c = width(x, axes)
        weights = s.param(slices, c, c)

        def step(i, h):
            w = lax.dynamic_index_in_dim(weights, index(i), keepdims=False)
            return jnp.tanh(times(h, w, axes))

        return lax.fori_loop(0, trips, step, x)

    return layer


layers(
    {
        "slices_from_the_last": over_slices(lambda i: 2 - i, 3, 3),
        "slices_halves_exchanged": over_slices(lambda i: jnp.where(i < 2, i + 2, i - 2), 4, 4),
        "slices_some_twice": over_slices(lambda i: jnp.minimum(i, 1), 3, 3),
        "slices_that_clamp": over_slices(lambda i: i + 1, 3, 3),
        "slices_not_all": over_slices(lambda i: i, 3, 2),
    }
)

# --- one weight at each step


@layer()
def looped(s, x, axes):
    c = width(x, axes)
    w = s.weight(c, c)
    return lax.fori_loop(
        0, steps(s), lambda i, h: jnp.tanh(times(h, w, axes) + i.astype(h.dtype)), x
    ), axes


@layer()
def looped_and_used_outside(s, x, axes):
    c = width(x, axes)
    w = s.weight(c, c)
    return times(
        lax.fori_loop(0, steps(s), lambda _, h: jnp.tanh(times(h, w, axes)), x), w, axes
    ), axes


@layer()
def looped_with_decaying_weight(s, x, axes):
    c = width(x, axes)

    def step(_, carry):
        h, w = carry
        return jnp.tanh(times(h, w, axes)), 0.5 * w

    return lax.fori_loop(0, steps(s), step, (x, s.weight(c, c)))[0], axes


@layer()
def looped_with_exchanged_weights(s, x, axes):
    c = width(x, axes)

    def step(_, carry):
        h, w, v = carry
        return jnp.tanh(times(h, w, axes)), v, w

    return lax.fori_loop(0, steps(s), step, (x, s.weight(c, c), s.param(c, c)))[0], axes


@layer()
def looped_with_shared_state(s, x, axes):
    """One carry holds the examples, another a state that all of them share."""
    c = width(x, axes)
    w, u = s.weight(c, c), s.param(c, c)

    def step(_, carry):
        h, state = carry
        state = jnp.tanh(state @ u)
        return jnp.tanh(times(h, w, axes) + per_feature(state, axes)), state

    return lax.fori_loop(0, steps(s), step, (x, s.param(c)))[0], axes


@jax.custom_vjp
def damped(x):
    """The identity, with half the gradient."""
    return x


damped.defvjp(lambda x: (x, None), lambda _, g: (0.5 * g,))


@layer()
def looped_with_damped_gradient(s, x, axes):
    c = width(x, axes)
    w = s.weight(c, c)
    return lax.fori_loop(0, steps(s), lambda _, h: damped(jnp.tanh(times(h, w, axes))), x), axes


@layer()
def looped_in_custom_vjp(s, x, axes):
    c, trips = width(x, axes), steps(s)

    def run(x, w):
        return lax.fori_loop(0, trips, lambda _, h: jnp.tanh(times(h, w, axes)), x)

    apply = jax.custom_vjp(run)
    apply.defvjp(lambda x, w: (run(x, w), (x, w)), lambda saved, g: jax.vjp(run, *saved)[1](g))
    return apply(x, s.weight(c, c)), axes


@layer()
def power_of_weight(s, x, axes):
    c = width(x, axes)
    w = s.weight(c, c)
    power = lax.fori_loop(0, steps(s), lambda _, p: jnp.tanh(p @ w), jnp.eye(c, dtype=w.dtype))
    return times(x, power, axes), axes


@layer()
def looped_with_position_masks(s, x, axes):
    """One mask a step for the whole batch, sliced inside the loop."""
    c, n = width(x, axes), axes.index("N")
    w = s.weight(c, c)
    whole = [s.batch if a == "N" else size for a, size in zip(axes, x.shape, strict=True)]
    masks = np.random.default_rng(s.knob).random((steps(s), *whole)) < 0.7
    masks = s.rows(jnp.asarray(masks, x.dtype), n + 1)
    return lax.scan(lambda h, m: (jnp.tanh(times(h, w, axes)) * m, None), x, masks)[0], axes


# --- branches


@layer()
def branch_on_parameter(s, x, axes):
    c = width(x, axes)
    w, v = s.weight(c, c), s.param(c, c)
    taken, other = (
        (lambda h: jnp.tanh(times(h, w, axes))),
        (lambda h: jnp.sin(times(times(h, v, axes), w, axes))),
    )
    return lax.cond(s.param() > 0, taken, other, x), axes


@layer()
def branch_on_step(s, x, axes):
    c = width(x, axes)
    w, v = s.weight(c, c), s.param(c, c)
    branches = [lambda h: times(h, w, axes), lambda h: jnp.tanh(times(h, v, axes)), lambda h: h]
    return lax.scan(
        lambda h, i: (lax.switch(i % 3, branches, h), None), x, jnp.arange(steps(s) + 1)
    )[0], axes


# --- recurrent networks, whose weights are used at each position


def over_positions(step, start, x, axes, **options):
    """Scan `step` over the positions of x [.., L, ..]; its outputs stand where these stood."""
    at = axes.index("L")
    return jnp.moveaxis(lax.scan(step, start, jnp.moveaxis(x, at, 0), **options)[1], 0, at), axes


def state(s, x, axes):
    """Zeros for the hidden features of each example, and the axes of a step."""
    inner = axes.replace("L", "")
    return jnp.zeros(
        [s.knob if a == "C" else x.shape[axes.index(a)] for a in inner], x.dtype
    ), inner


def recurrence(s, x, inner, axes):
    w, u = s.weight(s.knob, s.knob), s.param(width(x, axes), s.knob)

    def step(h, xt):
        h = jnp.tanh(times(h, w, inner) + times(xt, u, inner))
        return h, h

    return step


def rnn(wrap=lambda step: step, **options):
    def layer(s, x, axes):
        start, inner = state(s, x, axes)
        step = wrap(recurrence(s, x, inner, axes))
        return over_positions(step, start, x, axes, **options)[0]

    return layer


layers(
    {
        "rnn": rnn(),
        "rnn_backwards": rnn(reverse=True),
        "rnn_rematerialised": rnn(jax.checkpoint),
        "rnn_unrolled": rnn(unroll=2),
    },
    "LC",
)


@layer("LC")
def lstm(s, x, axes):
    start, inner = state(s, x, axes)
    gates = [(s.param(s.knob, s.knob), s.param(width(x, axes), s.knob)) for _ in range(4)]

    def step(carry, xt):
        h, cell = carry
        i, f, o, g = (times(h, w, inner) + times(xt, u, inner) for w, u in gates)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (h, cell), h

    return over_positions(step, (start, start), x, axes)


@layer("LC")
def gru(s, x, axes):
    start, inner = state(s, x, axes)
    gates = [(s.param(s.knob, s.knob), s.param(width(x, axes), s.knob)) for _ in range(3)]

    def step(h, xt):
        update, reset = (
            jax.nn.sigmoid(times(h, w, inner) + times(xt, u, inner)) for w, u in gates[:2]
        )
        w, u = gates[2]
        h = (1 - update) * h + update * jnp.tanh(times(reset * h, w, inner) + times(xt, u, inner))
        return h, h

    return over_positions(step, start, x, axes)


@layer("LC")
def rnn_layers(s, x, axes):
    """A scan over layers of scans over positions."""
    c, inner = width(x, axes), axes.replace("L", "")
    start = jnp.zeros([x.shape[axes.index(a)] for a in inner], x.dtype)

    def one(xs, weights):
        w, u = weights

        def step(h, xt):
            h = jnp.tanh(times(h, w, inner) + times(xt, u, inner))
            return h, h

        return over_positions(step, start, xs, axes)[0], None

    return lax.scan(one, x, (s.param(2, c, c), s.param(2, c, c)))[0], axes


@layer("LC")
def linear_recurrence(s, x, axes):
    """h_t = a_t h_(t-1) + x_t, as an associative scan."""
    c = width(x, axes)
    decay = jax.nn.sigmoid(times(x, s.weight(c, c), axes))

    def joined(one, other):
        return one[0] * other[0], other[0] * one[1] + other[1]

    return lax.associative_scan(joined, (decay, x), axis=axes.index("L"))[1], axes
