"""Tail statistics: the mean of phi, or the variance, behind ops that move and scale gradients.

%s = phi's mean at a site ; %g = multiply (transpose %site), 3
    =>  phi(3) * transpose %s        where phi(ab) = phi(a) phi(b)
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.moments import squared_magnitude
from hlo_surgery.passes.terms.epilogue import Does, Link, moving, reading_of
from hlo_surgery.passes.terms.scaling import exponent_of, times_power_of_two
from hlo_surgery.passes.terms.steps import GradientSlice, Input

Phi = Callable[[jax.Array], jax.Array]


def tail_powers(sliced: GradientSlice, given: Mapping[Input, jax.Array]) -> dict[Value, jax.Array]:
    """For each op of the tail that scales, the power of two in what it scales by.

    Sites take them in with their operands: what comes into the range of floats only behind the
    tail, as the gradient of a loss that was scaled, has squares that are in twice that range at the
    site.
    """
    found: dict[Value, jax.Array] = {}
    for step in sliced.tail:
        link = reading_of(step, sliced.made)
        scales = [jnp.abs(widened(given[key])) for key in step.inputs if key in given]
        if link and link.does is Does.SCALES and link.divides:
            found[link.made] = -exponent_of(jnp.min(scales[0], initial=jnp.inf))
        elif link and link.does is Does.SCALES:
            found[link.made] = exponent_of(jnp.max(scales[0], initial=0))
    return found


def moved_statistic(
    sliced: GradientSlice,
    statistics: Mapping[Value, jax.Array],
    given: Mapping[Input, jax.Array],
    phi: Phi,
    dtype: jnp.dtype,
    of_padding: Phi | None = None,
    powers: Mapping[Value, jax.Array] | None = None,
) -> jax.Array:
    """The mean of phi behind a tail of moves and scales, from the mean of phi in front of it.

    `of_padding`: what stands beside it where the tail pads; by default phi of what it pads with.
    `powers`: of two, by results of the tail, that the statistics have been scaled by already.
    """
    known, powers = dict(statistics), powers or {}
    for step in sliced.tail:
        link = reading_of(step, known)
        assert link is not None
        others = [
            given[key].astype(dtype) for i, key in enumerate(step.inputs) if i not in link.sums
        ]
        if (power := powers.get(link.made)) is not None:
            left = power if link.divides else -power
            others = [times_power_of_two(scale, left) for scale in others]
        value = known[step.inputs[link.sums[0]][0]]
        known[link.made] = _behind(link, value, others, phi, dtype, of_padding or phi)
    return known[sliced.value]


def variance_behind(
    sliced: GradientSlice,
    variances: Mapping[Value, jax.Array],
    given: Mapping[Input, jax.Array],
    dtype: jnp.dtype,
    powers: Mapping[Value, jax.Array] | None = None,
) -> jax.Array:
    """The variance behind a tail of moves and scales; what is padded with has none. `powers`: see
    `moved_statistic`.
    """
    return moved_statistic(
        sliced,
        variances,
        given,
        lambda x: squared_magnitude(x.astype(dtype)),
        dtype,
        jnp.zeros_like,
        powers,
    )


def _behind(
    link: Link,
    value: jax.Array,
    others: Sequence[jax.Array],
    phi: Phi,
    dtype: jnp.dtype,
    of_padding: Phi,
) -> jax.Array:
    """One op of the tail on phi of gradients: what scales is scaled by phi, what moves is moved.

    `others`: its other operands.
    """
    match link.does:
        case Does.NEGATES:
            return value * phi(jnp.asarray(-1, dtype))
        case Does.SCALES:
            return _scaled(value, others[0], phi, link.divides)
        case Does.MOVES | Does.PADS:
            moved = moving(link.op)
            assert moved is not None
            # A pad puts numbers beside the gradients of which phi has not been taken yet.
            return moved(value, *(of_padding(padding).astype(value.dtype) for padding in others))[0]
        case _:
            return value


def _scaled(value: jax.Array, scale: jax.Array, phi: Phi, divides: bool = False) -> jax.Array:
    """Times phi of the scale, in two halves, in range wherever the result is."""
    half = jnp.trunc(exponent_of(jnp.abs(scale)) / 2)
    power = times_power_of_two(jnp.ones_like(scale), half)
    rest = times_power_of_two(scale, -half)
    return value * phi(1 / power) * phi(1 / rest) if divides else value * phi(power) * phi(rest)
