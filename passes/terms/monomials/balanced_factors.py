"""Balanced factors: scaled against each other before phi, with phi(x y) = phi(x) phi(y), of both.

phi(x y) = phi(2**e x) phi(2**-e y), but for another e phi of a factor may be 0 or inf where that of
the product is not.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hlo_surgery.passes.terms.monomials.binary_exponents import exponent_of, times_power_of_two
from hlo_surgery.passes.terms.monomials.paired_dims import Dims, laid_along, magnitudes

Phi = Callable[[jax.Array], jax.Array]


def balanced(
    lhs: jax.Array,
    rhs: jax.Array,
    dims: tuple[Dims, Dims],
    phi: Phi,
    power: jax.Array | float = 0,
) -> tuple[jax.Array, jax.Array]:
    """The factors of a contraction, of which phi is taken; lhs times 2**power.

    The largest elements of both are made alike, the root of the largest product: phi of it is as
    far from the end of the range as phi of what it is lost beside from the other. Where one holds
    inf and the other is zero, the latter is NaN, as their product is.
    """
    most, other_most = (
        exponent_of(magnitudes(x, d)) for x, d in zip((lhs, rhs), dims, strict=True)
    )
    exponent = jnp.floor((other_most - most - power) / 2)
    scaled = _scaled(lhs, exponent + power, dims[0]), _scaled(rhs, -exponent, dims[1])
    zero = jnp.zeros((), lhs.dtype)
    if_zero = ~jnp.isnan(phi(zero + jnp.inf) * phi(zero))
    spoilt = [_holds_inf(x, d) & if_zero for x, d in zip((rhs, lhs), reversed(dims), strict=True)]
    return _nan_beside(scaled[0], spoilt[0], dims[0]), _nan_beside(scaled[1], spoilt[1], dims[1])


def _scaled(x: jax.Array, exponent: jax.Array, dims: Dims) -> jax.Array:
    return times_power_of_two(x, laid_along(exponent, x, dims))


def _holds_inf(x: jax.Array, dims: Dims) -> jax.Array:
    """Whether there is inf along the other dimensions; the largest of them may be NaN."""
    return magnitudes(jnp.isinf(x).astype(jnp.finfo(x.dtype).dtype), dims) > 0


def _nan_beside(x: jax.Array, is_spoilt: jax.Array, dims: Dims) -> jax.Array:
    return jnp.where((x == 0) & laid_along(is_spoilt, x, dims), jnp.asarray(jnp.nan, x.dtype), x)
