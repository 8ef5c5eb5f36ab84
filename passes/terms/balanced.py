"""Balanced factors: scaled against each other before phi, with phi(x y) = phi(x) phi(y), of both.

phi(x y) = phi(2**e x) phi(2**-e y), but for another e phi of a factor may be 0 or inf where that of
the product is not.

Paired dimensions: those along which a contraction's two factors scale against each other.

sum_t x[h, t, d] y[h, t, f]  =  sum_t (x[h, t, d] / s[h, t]) (y[h, t, f] s[h, t])
"""

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.terms.epilogue import Phi
from hlo_surgery.passes.terms.scaling import exponent_of, times_power_of_two
from hlo_surgery.passes.terms.steps import Dims, contracted


def paired_dims(dot: Operation) -> tuple[Dims, Dims]:
    """The dimensions of both factors, pair by pair: what agrees in all of them is multiplied."""
    left, right = contracted(dot).values()
    return (*left.batch, *left.summed), (*right.batch, *right.summed)


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
        exponent_of(_magnitudes(x, d)) for x, d in zip((lhs, rhs), dims, strict=True)
    )
    exponent = jnp.floor((other_most - most - power) / 2)
    zero = jnp.zeros((), lhs.dtype)
    if_zero = ~jnp.isnan(phi(zero + jnp.inf) * phi(zero))

    def scaled(
        x: jax.Array, by: jax.Array, other: jax.Array, own_dims: Dims, other_dims: Dims
    ) -> jax.Array:
        made = times_power_of_two(x, _laid_along(by, x, own_dims))
        # Not asked of the largest, which may be NaN.
        has_inf = _magnitudes(jnp.isinf(other).astype(jnp.finfo(other.dtype).dtype), other_dims) > 0
        is_spoilt = _laid_along(has_inf & if_zero, made, own_dims)
        return jnp.where((made == 0) & is_spoilt, jnp.asarray(jnp.nan, made.dtype), made)

    first = scaled(lhs, exponent + power, rhs, *dims)
    return first, scaled(rhs, -exponent, lhs, *reversed(dims))


def _magnitudes(x: jax.Array, dims: Dims) -> jax.Array:
    """The largest magnitude along all other dimensions, these dimensions in their order."""
    zero = jnp.zeros((), jnp.abs(x).dtype)
    kept = sorted(dims)
    largest = lax.reduce(jnp.abs(x), zero, lax.max, _others(x, dims))
    return largest.transpose([kept.index(d) for d in dims])


def _others(x: jax.Array, dims: Dims) -> list[int]:
    return [d for d in range(x.ndim) if d not in dims]


def _laid_along(values: jax.Array, x: jax.Array, dims: Dims) -> jax.Array:
    """Values by these dimensions, of size 1 along the others of x."""
    ordered = values.transpose([dims.index(d) for d in sorted(dims)])
    return jnp.expand_dims(ordered, _others(x, dims))
