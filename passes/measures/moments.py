"""Moments: squares of magnitudes, variances from sums about any centre, and their bias."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.measures.limits import at_least


def squared_magnitude(g: jax.Array) -> jax.Array:
    """|g|**2, elementwise."""
    return lax.real(lax.mul(g, lax.conj(g))) if jnp.iscomplexobj(g) else lax.mul(g, g)


def central_moment(square: jax.Array, mean: jax.Array) -> jax.Array:
    """The variance from the means of |g - c|**2 and g - c, any c: precise where c is near."""
    return at_least(square - squared_magnitude(mean), 0)


def unbiased(count: Any) -> Any:
    """n / (n - 1); NaN where so many examples have no variance."""
    if isinstance(count, jax.Array):
        return jnp.where(count > 1, count / jnp.maximum(count - 1, 1), jnp.nan)
    return count / (count - 1) if count > 1 else math.nan
