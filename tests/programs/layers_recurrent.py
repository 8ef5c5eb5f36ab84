"""Layers that scan over positions: recurrent networks, whose weights are used at each step."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.programs.layer_table import layer, times, width


def over_positions(step, start, x, axes, **options):
    """Scan `step` over the positions of x [.., L, ..]; its outputs stand where x's positions
    stood.
    """
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


@layer("LC")
def rnn(s, x, axes):
    start, inner = state(s, x, axes)
    return over_positions(recurrence(s, x, inner, axes), start, x, axes)


@layer("LC")
def rnn_backwards(s, x, axes):
    start, inner = state(s, x, axes)
    return over_positions(recurrence(s, x, inner, axes), start, x, axes, reverse=True)


@layer("LC")
def rnn_rematerialised(s, x, axes):
    start, inner = state(s, x, axes)
    return over_positions(jax.checkpoint(recurrence(s, x, inner, axes)), start, x, axes)


@layer("LC")
def rnn_unrolled(s, x, axes):
    start, inner = state(s, x, axes)
    return over_positions(recurrence(s, x, inner, axes), start, x, axes, unroll=2)


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
