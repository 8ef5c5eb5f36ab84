"""Norms whose squares neither overflow nor underflow: gradients from 1e-30 to 1e30 keep their relative accuracy."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

# Rows shorter than this are read twice rather than kept: XLA then fuses their norm with what makes them.
FEW = 1 << 14


def norms_of_rows(x: jax.Array, ord: float = 2) -> jax.Array:
    """The norm of each x[b] over all its elements, [B].

    >>> [f"{norm:.4g}" for norm in norms_of_rows(jnp.array([[3.0, 4.0], [3e-30, 4e-30]])).tolist()]
    ['5', '5e-30']
    """
    rows = jnp.abs(x).reshape(x.shape[0], -1)
    if rows.shape[1] == 0:
        return jnp.zeros(rows.shape[:1], rows.dtype)
    if ord == 1:
        return jnp.sum(rows, 1)
    if ord == jnp.inf:
        return jnp.max(rows, 1)
    if rows.shape[1] < FEW:
        return _scaled(rows, ord)
    powers = jnp.sum(_power(rows, ord), 1)
    return lax.cond(_in_range(powers, rows.shape[1]), lambda: _root(powers, ord), lambda: _scaled(rows, ord))


def _in_range(powers: jax.Array, terms: int) -> jax.Array:
    """Whether no sum has overflowed, nor is so small that terms of it may have underflowed."""
    limits = jnp.finfo(powers.dtype)
    return jnp.all((powers > terms * float(limits.tiny) / float(limits.eps)) & (powers < limits.max))


def _scaled(rows: jax.Array, ord: float) -> jax.Array:
    scale = power_of_two(jnp.max(rows, 1))
    return scale * _root(jnp.sum(_power(rows / scale[:, None], ord), 1), ord)


def norms_along(x: jax.Array, dim: int) -> jax.Array:
    """The norm over all dimensions but one, without a reshape: XLA then needs no copy of what makes x."""
    others = [d for d in range(x.ndim) if d != dim]
    magnitude = jnp.abs(x)
    scale = power_of_two(jnp.max(magnitude, others, initial=0))
    scaled = magnitude / jnp.expand_dims(scale, others)
    return scale * jnp.sqrt(jnp.sum(jnp.square(scaled), others))


def _power(x: jax.Array, ord: float) -> jax.Array:
    return lax.square(x) if ord == 2 else x**ord


def _root(x: jax.Array, ord: float) -> jax.Array:
    return lax.sqrt(x) if ord == 2 else x ** (1 / ord)


def power_of_two(largest: jax.Array) -> jax.Array:
    """The power of two nearest to each positive number, so that scaling by it is exact; 1 for zero, inf and NaN."""
    mantissa_free = lax.reduce_precision(largest, jnp.finfo(largest.dtype).nexp, 0)
    return jnp.where((largest > 0) & jnp.isfinite(mantissa_free) & (mantissa_free > 0), mantissa_free, 1)


def joint_norm(norms: Sequence[jax.Array], ord: float = 2) -> jax.Array:
    """The norm of several arrays together, from the norm of each: [B] from each [B]."""
    return norms_of_rows(jnp.stack(norms, 1), ord)
