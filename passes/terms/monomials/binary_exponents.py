"""Binary exponents: numbers as m * 2**e, so that no step to a product leaves its floats' range.

XLA flushes to zero what is smaller than the smallest normal number, also where it is a constant or
the inverse of one: 2**-127 is 0 in float32. So powers of two are multiplied with, in parts that are
normal numbers, as are their inverses. Exponents are integers held as floats.
"""

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

# A number as m and e; m is near 1, or is 0, inf or NaN.
Scaled = tuple[jax.Array, jax.Array]

# An exponent below that of any number: that of zero, so that it is never the largest of several.
LOWEST = -1e5


def exponent_of(magnitude: jax.Array, of_zero: float = 0) -> jax.Array:
    """The exponent of positive numbers, give or take one; `of_zero` of what is no normal number, 0
    of inf and NaN.

    >>> exponent_of(jnp.array([0.75, 8.0, 0.0, jnp.inf])).tolist()
    [-1.0, 3.0, 0.0, 0.0]
    """
    small, finite = magnitude < jnp.finfo(magnitude.dtype).tiny, jnp.isfinite(magnitude)
    exponent = jnp.floor(jnp.log2(jnp.where(small | ~finite, 1, magnitude)))
    return jnp.where(small, of_zero, exponent)


def times_power_of_two(x: jax.Array, exponent: jax.Array, parts: int = 2) -> jax.Array:
    """x * 2**exponent, exact if a normal number; two parts suffice for one number's exponent.

    >>> x = jnp.float32(3e-38)
    >>> times_power_of_two(x, jnp.float32(130.0)).item() == float(x) * 2.0**130
    True
    """
    limit = float(jnp.finfo(exponent.dtype).maxexp) - 8
    part = jnp.trunc(exponent / parts)
    for power in [*[part] * (parts - 1), exponent - part * (parts - 1)]:
        x = x * _power_of_two(jnp.clip(power, -limit, limit)).astype(x.dtype)
    return x


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """2**e without exp2's own rounding: it is off by less than the dropped half power."""
    return lax.reduce_precision(jnp.exp2(exponent), int(jnp.finfo(exponent.dtype).nexp), 0)


def as_scaled(x: jax.Array) -> Scaled:
    """Each number as m and e, which is LOWEST for zero."""
    exponent = exponent_of(jnp.abs(x), LOWEST)
    return times_power_of_two(x, -exponent), exponent


def product_of(numbers: Sequence[Scaled]) -> Scaled:
    """The product, still as m and e."""
    mantissas, exponents = zip(*numbers, strict=True)
    return functools.reduce(operator.mul, mantissas), functools.reduce(operator.add, exponents)


def inverse_of(number: Scaled) -> Scaled:
    """1 over a number."""
    return 1 / number[0], -number[1]


def from_scaled(number: Scaled) -> jax.Array:
    """m * 2**e as one number: inf or 0 only where that is."""
    mantissa, exponent = number
    return times_power_of_two(mantissa, exponent, parts=4)
