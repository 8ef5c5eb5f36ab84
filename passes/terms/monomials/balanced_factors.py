"""Balanced factors: scaled against each other before phi, with phi(x y) = phi(x) phi(y), of both.

phi(x y) = phi(2**e x) phi(2**-e y), but for another e phi of a factor may be 0 or inf where that of
the product is not.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hlo_surgery.passes.terms.monomials.binary_exponents import (
    LOWEST,
    exponent_of,
    times_power_of_two,
)
from hlo_surgery.passes.terms.monomials.paired_dims import (
    Dims,
    laid_along,
    least_magnitudes,
    lost_beside,
    magnitudes,
)

# The largest and the least exponent of some elements.
Ends = tuple[jax.Array, jax.Array]
Phi = Callable[[jax.Array], jax.Array]


def balanced(
    lhs: jax.Array,
    rhs: jax.Array,
    dims: tuple[Dims, Dims],
    phi: Phi,
    scale: jax.Array,
    power: jax.Array | float = 0,
    loses: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """The factors of a contraction, of which phi is taken and one then multiplied by `scale`; lhs
    times 2**power. NaN where one `loses` what counts beside the other.

    Where one holds inf and the other is zero, the latter is NaN, as their product is.
    """
    one, other = largest = magnitudes(lhs, dims[0]), magnitudes(rhs, dims[1])
    least = least_magnitudes(lhs, dims[0]), least_magnitudes(rhs, dims[1])
    first, second = (
        (exponent_of(x, LOWEST), exponent_of(y)) for x, y in zip(largest, least, strict=True)
    )
    raised = first[0] + power, first[1] + power
    exponent, _ = balance(raised, second, _reach(phi, scale))
    scaled = _scaled(lhs, exponent + power, dims[0]), _scaled(rhs, -exponent, dims[1])
    return (
        _nan_for_lost(scaled[0], _spoilt(rhs, dims[1], phi, largest if loses else None), dims[0]),
        _nan_for_lost(
            scaled[1], _spoilt(lhs, dims[0], phi, (other, one) if loses else None), dims[1]
        ),
    )


def balance(first: Ends, second: Ends, reach: jax.Array | float) -> tuple[jax.Array, jax.Array]:
    """The exponent e for 2**e x and 2**-e y, from the largest and least exponents of each; and
    whether it suits all.

    It does if no exponent leaves +-`reach`, within which powers are normal numbers, but those of
    elements of which all products do. There is such an e if all products but zeros lie within the
    reach, and then no power of a factor is 0 or inf. Otherwise nothing becomes inf, if possible,
    and the smallest elements become 0.
    """
    (most, least), (other_most, other_least) = first, second
    low = jnp.maximum(jnp.minimum(-reach - least, other_most), other_most - reach)
    high = jnp.minimum(reach - most, jnp.maximum(other_least + reach, -most))
    middle = jnp.maximum(jnp.minimum((low + high) / 2, reach - most), other_most - reach)
    return jnp.floor(middle), low <= high


def _scaled(x: jax.Array, exponent: jax.Array, dims: Dims) -> jax.Array:
    return times_power_of_two(x, laid_along(exponent, x, dims))


def _reach(phi: Phi, scale: jax.Array) -> jax.Array:
    """The largest exponent that phi, which is some power, may be taken of; what multiplies it has
    its room.
    """
    kind = jnp.finfo(scale.dtype)
    power, room = (_finite(jnp.log2(jnp.abs(x))) for x in (phi(jnp.asarray(2, scale.dtype)), scale))
    return (float(kind.maxexp) - 8 - jnp.abs(room)) / jnp.maximum(jnp.abs(power), 1)


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, 0)


def _holds_inf(x: jax.Array, dims: Dims) -> jax.Array:
    """Whether there is inf along the other dimensions; the largest of them may be NaN."""
    return magnitudes(jnp.isinf(x).astype(jnp.finfo(x.dtype).dtype), dims) > 0


def _spoilt(
    other: jax.Array, dims: Dims, phi: Phi, largest: tuple[jax.Array, jax.Array] | None
) -> jax.Array:
    """Where a factor's zeros are none: beside the other's inf, unless phi makes NaN of the two by
    itself, and where they may be `lost_beside` it, by the largest of both.
    """
    zero = jnp.zeros((), other.dtype)
    beside_inf = _holds_inf(other, dims) & ~jnp.isnan(phi(zero + jnp.inf) * phi(zero))
    return beside_inf if largest is None else beside_inf | lost_beside(*largest)


def _nan_for_lost(x: jax.Array, is_spoilt: jax.Array, dims: Dims) -> jax.Array:
    return jnp.where((x == 0) & laid_along(is_spoilt, x, dims), jnp.nan, x)
