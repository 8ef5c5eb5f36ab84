"""Norms whose squares neither overflow nor underflow: right wherever they are normal numbers."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.terms.monomials.binary_exponents import (
    Scaled,
    exponent_of,
    from_scaled,
    times_power_of_two,
    traced_once,
)

# Rows shorter than this are read twice rather than kept: XLA then fuses their norm with what makes
# them.
FEW = 1 << 14


def norms_of_rows(
    x: jax.Array,
    ord: float = 2,
    branches: bool = True,
    otherwise: Callable[[], jax.Array] | None = None,
) -> jax.Array:
    """The norm of each x[b] over all its elements, [B]; inf where it is beyond the largest number.

    `branches`: whether one may be taken; `vmap` takes both ways of it. `otherwise`: what makes the
    norms in the other branch, so that x need not be held for it.

    >>> rows = jnp.array([[3.0, 4.0], [3e-30, 4e-30], [2e38, 2e38]])
    >>> [f"{norm:.4g}" for norm in norms_of_rows(rows).tolist()]
    ['5', '5e-30', '2.828e+38']
    """
    others, count = range(1, x.ndim), math.prod(x.shape[1:])
    if ord == 1:
        return jnp.sum(jnp.abs(x), others)
    if ord == jnp.inf:
        # XLA on CPU drops NaN from a maximum of many elements.
        has_nan = jnp.any(jnp.isnan(x), others)
        largest = jnp.max(jnp.abs(x), others, initial=0)
        return jnp.where(has_nan, jnp.asarray(jnp.nan, largest.dtype), largest)
    if not branches or count < FEW:
        return from_scaled(scaled_norms(x, 0, ord))
    powers = jnp.sum(_power(jnp.abs(x), ord), others)
    # The second way takes x as it is: of magnitudes, or rows of another shape, XLA would make
    # copies for it, whether or not they are asked for.
    of_x = otherwise or (lambda: from_scaled(scaled_norms(x, 0, ord)))
    return lax.cond(_in_range(powers, count), lambda: _root(powers, ord), of_x)


def _in_range(powers: jax.Array, terms: int) -> jax.Array:
    """Whether no sum has overflowed, nor is so small that terms of it may have underflowed."""
    limits = jnp.finfo(powers.dtype)
    return jnp.all(
        (powers > terms * float(limits.tiny) / float(limits.eps)) & (powers < limits.max)
    )


@partial(traced_once, static_argnames=("dim", "ord"))
def scaled_norms(x: jax.Array, dim: int, ord: float = 2) -> Scaled:
    """Norms over all dimensions but one, as m * 2**e; with no reshape, XLA copies nothing."""
    others = [d for d in range(x.ndim) if d != dim]
    magnitude = jnp.abs(x)
    exponent = exponent_of(jnp.max(magnitude, others, initial=0))
    scaled = times_power_of_two(magnitude, -jnp.expand_dims(exponent, others))
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(scaled), others)), exponent
    largest = jnp.max(scaled, others, initial=0)
    # The largest becomes 1, to which no power does anything.
    divisor = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    return divisor * _root(
        jnp.sum(_power(scaled / jnp.expand_dims(divisor, others), ord), others), ord
    ), exponent


def _power(x: jax.Array, ord: float) -> jax.Array:
    return lax.square(x) if ord == 2 else x**ord


def _root(x: jax.Array, ord: float) -> jax.Array:
    return lax.sqrt(x) if ord == 2 else x ** (1 / ord)


def joint_norm(norms: Sequence[jax.Array], ord: float = 2) -> jax.Array:
    """The norm of several arrays together, from the norm of each: [B] from each [B]."""
    return norms_of_rows(jnp.stack(norms, 1), ord)
