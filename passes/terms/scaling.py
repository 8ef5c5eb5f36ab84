"""Scaling: powers of two, so that no step to a product leaves the range of its floats; and norms.

XLA flushes to zero what is smaller than the smallest normal number, also where it is a constant or
the inverse of one: 2**-127 is 0 in float32. So powers of two are multiplied with that are normal
numbers, as are their inverses. Exponents are integers held as floats.

Norms of float32, their squares summed in float64, where none overflows and none underflows.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.ir.constants import widened

# A function of arrays is traced once for their shapes, and not wherever a large model needs it; its
# ops stand there as if it had been.
traced_once = partial(jax.jit, inline=True)


@traced_once
def exponent_of(magnitude: Array) -> Array:
    """The exponent of positive numbers, give or take one; 0 of what is no normal number.

    >>> exponent_of(jnp.array([0.75, 8.0, 0.0, jnp.inf])).tolist()
    [-1.0, 3.0, 0.0, 0.0]
    """
    return jnp.floor(jnp.log2(or_one(magnitude)))


def or_one(largest: Array) -> Array:
    """1 where it is no normal number."""
    is_normal = (largest >= jnp.finfo(largest.dtype).tiny) & (largest < jnp.inf)
    return jnp.where(is_normal, largest, 1)


@traced_once
def times_power_of_two(x: Array, exponent: Array) -> Array:
    """x * 2**exponent, exact if a normal number; in float32 exponents beyond 240 count as 240.

    >>> x = jnp.float32(3e-38)
    >>> times_power_of_two(x, jnp.float32(130.0)).item() == float(x) * 2.0**130
    True
    """
    # Of two parts, which are normal numbers, as 2**240 is none.
    limit = 2 * (float(jnp.finfo(exponent.dtype).maxexp) - 8)
    exponent = jnp.clip(exponent, -limit, limit)
    part = jnp.floor(exponent / 2)
    return x * _power_of_two(part).astype(x.dtype) * _power_of_two(exponent - part).astype(x.dtype)


def _power_of_two(exponent: Array) -> Array:
    """2**e without exp2's own rounding: it is off by less than the dropped half power."""
    return lax.reduce_precision(jnp.exp2(exponent), int(jnp.finfo(exponent.dtype).nexp), 0)


def near_power_of_two(x: Array) -> Array:
    """The nearest power of two, that and its inverse well within the range of floats."""
    most = 2.0 ** (float(jnp.finfo(x.dtype).maxexp) - 8)
    return lax.reduce_precision(jnp.clip(x, 1 / most, most), int(jnp.finfo(x.dtype).nexp), 0)


# By powers of two up to this one, as of batches of 65536 examples, numbers are doubled.
MOST_DOUBLINGS = 16


def raised(x: Array, power: Array | float) -> Array:
    """x * 2**power, in at least float32, where that is not 1."""
    if isinstance(power, float | int) and power == 0:
        return x
    wide = widened(x)
    if isinstance(power, float | int) and power in range(1, MOST_DOUBLINGS + 1):
        # By additions, which round nothing either: a constant factor that several sums have XLA
        # writes out, on CPU, as an array like x, and keeps until the last of them.
        return reduce(lambda y, _: y + y, range(int(power)), wide)
    return times_power_of_two(wide, jnp.asarray(power, jnp.finfo(wide.dtype).dtype))


# XLA on CPU takes five times as long for a long sum in float64, and is left to one of float32.
FEW = 1 << 14


def norms_of_rows(x: Array, ord: float = 2, branches: bool = True, wide: bool = True) -> Array:
    """The norm of each x[b] over all its elements, [B]; inf where it is beyond the largest number.

    Squares are summed in float64, or, if not `wide`, in the dtype of x: an element counts where its
    square is a normal number. `branches`: whether one may be taken; `vmap` takes both ways of it.

    >>> with jax.enable_x64(True):
    ...     rows = jnp.array([[3.0, 4.0], [3e-30, 4e-30], [2e38, 2e38]], "float32")
    ...     [f"{norm:.4g}" for norm in norms_of_rows(rows).tolist()]
    ['5', '5e-30', '2.828e+38']
    """
    others, count = range(1, x.ndim), math.prod(x.shape[1:])
    if ord != 2:
        return _other_norms(jnp.abs(x), others, ord)

    def in_float64() -> Array:
        return wide_norms(x, others).astype(jnp.finfo(x.dtype).dtype)

    if wide and (not branches or count < FEW):
        return in_float64()
    squares = jnp.sum(lax.square(_real(x)), others)
    if not wide:
        return jnp.sqrt(squares)
    return lax.cond(_in_range(squares, count), lambda: jnp.sqrt(squares), in_float64)


def wide_norms(x: Array, dims: Sequence[int]) -> Array:
    """The norms over these dimensions, in float64."""
    return jnp.sqrt(jnp.sum(lax.square(_real(x).astype(jnp.float64)), dims))


def _real(x: Array) -> Array:
    """What has the same squares; of real numbers they themselves, since XLA would write |x| out for
    the second way to share.
    """
    return jnp.abs(x) if jnp.iscomplexobj(x) else x


def _other_norms(magnitude: Array, dims: Sequence[int], ord: float) -> Array:
    if ord == 1:
        return jnp.sum(magnitude, dims)
    # XLA on CPU drops NaN from a maximum of many elements.
    has_nan = jnp.any(jnp.isnan(magnitude), dims)
    largest = jnp.max(magnitude, dims, initial=0)
    largest = jnp.where(has_nan, jnp.asarray(jnp.nan, largest.dtype), largest)
    if ord == jnp.inf:
        return largest
    # The largest becomes 1, to which no power does anything.
    divisor = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    shares = magnitude / jnp.expand_dims(divisor, dims)
    return divisor * jnp.sum(shares**ord, dims) ** (1 / ord)


def _in_range(squares: Array, terms: int) -> Array:
    """Whether no sum has overflowed, nor is so small that terms of it may have underflowed."""
    limits = jnp.finfo(squares.dtype)
    return jnp.all(
        (squares > terms * float(limits.tiny) / float(limits.eps)) & (squares < limits.max)
    )


def joint_norm(norms: Sequence[Array], ord: float = 2) -> Array:
    """The norm of several arrays together, from the norm of each: [B] from each [B]."""
    return norms_of_rows(jnp.stack(norms, 1), ord)
