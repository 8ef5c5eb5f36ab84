"""Traps of what is a constant of the batch: marked, data that is one for all, and contributions."""

import jax.numpy as jnp
import numpy as np
from jax import lax

import hlo_surgery as hs
from tests.axes.traps import B, exact, mixes, unshown
from tests.axes.traps_of_choices import CONTRIBUTION, as_gradient
from tests.axes.traps_of_constants import BIASED, TABLE, out
from tests.axes.traps_of_loops import total
from tests.axes.traps_of_places import hidden

EVEN = np.arange(B)[:, None] % 2 == 0


@unshown
def a_marked_constant_as_a_term(w, x):
    return jnp.mean(hidden(w, x)) + jnp.sum(hs.constant(hidden(w, x).mean(0)) @ w)


@mixes
def mixed_beside_a_marked_constant(w, x):
    h = x @ w
    return jnp.mean((h - h.mean(0)) ** 2 * hs.constant(h.mean(0)))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) * jnp.mean(x)), holds_data=True)
def data_behind_a_barrier(w, x):
    return jnp.mean(hidden(w, x) * jnp.mean(lax.optimization_barrier(x)))


@mixes
def the_mean_in_the_place_of_some(w, x):
    return jnp.mean(hidden(w, jnp.where(EVEN, jnp.mean(x), x)))


@mixes
def the_mean_in_some_steps(w, x):
    mean = jnp.mean(x)
    step = lambda i, c: c + jnp.mean(hidden(w, jnp.where(i % 2 == 0, mean, x[i])))  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0) / B


@exact(own=lambda w, x, b: jnp.mean(hidden(w, jnp.mean(x) + 0 * x[b])), holds_data=True)
def the_mean_in_the_place_of_all(w, x):
    """What parameters alone choose, they choose for all."""
    return jnp.mean(hidden(w, jnp.where(jnp.sum(w**2) > 0, jnp.mean(x), x)))


@mixes(options=CONTRIBUTION, **BIASED)
def contributions_of_a_bias_to_a_squared_mean(p, x):
    """Row b of the cotangent is everybody's."""
    return jnp.sum(jnp.mean(out(p, x), 0) ** 2)


@exact(
    own=lambda w, x, b: B * as_gradient(w, jnp.full((3, 3), jnp.sum(hidden(w, x[b])))),
    options=CONTRIBUTION,
)
def contributions_to_a_sum_for_all_features(w, x):
    return as_gradient(w, jnp.full((3, 3), jnp.sum(hidden(w, x))))


@mixes(options=CONTRIBUTION)
def contributions_beside_the_largest(w, x):
    """It is a term of the gradient, and nobody's."""
    return jnp.mean(hidden(w, x)) + lax.stop_gradient(jnp.max(hidden(w, x))) * jnp.sum(w)


@mixes(**TABLE)
def data_that_scales_rows_of_a_parameter(p, x):
    """Its gradient is rows, and might be with respect to data."""
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"]) * jnp.mean(x))


@exact(own=lambda w, x, b: total(w, x[b]) * jnp.where(jnp.mean(x) > 0, 1, 2), holds_data=True)
def data_decides_in_each_step(w, x):
    mean = jnp.mean(x)
    one = lambda e: lax.cond(mean > 0, lambda: total(w, e), lambda: 2 * total(w, e))  # noqa: E731
    return jnp.mean(lax.map(one, x))


@exact(own=lambda w, x, b: total(w, x[b] * jnp.where(jnp.mean(x) > 0, 2, 3)), holds_data=True)
def data_decides_for_all_rows(w, x):
    rows = lax.cond(jnp.mean(x) > 0, lambda: 2 * x, lambda: 3 * x)
    return jnp.mean(jnp.sum(hidden(w, rows) ** 2, 1))


@mixes
def data_decides_on_a_penalty(w, x):
    penalty = lax.cond(jnp.mean(x) > 0, lambda: jnp.sum(w**2), lambda: jnp.sum(w**4))
    return jnp.mean(hidden(w, x)) + penalty


@mixes
def the_largest_so_far_decides_the_weight(w, x):
    def step(largest, e):
        largest = jnp.maximum(largest, e[0])
        return largest, total(w, e) * lax.cond(largest > 0.8, lambda: 1.0, lambda: 2.0)

    return jnp.mean(lax.scan(step, -1.0, x)[1])


@exact
def data_until_it_is_small(w, x):
    """How long it takes the last one is no constant that anything rests on."""
    halved = lambda h: jnp.where(h > 0.3, h / 2, h)  # noqa: E731
    return jnp.mean(hidden(w, lax.while_loop(lambda h: jnp.any(h > 0.3), halved, x)))
