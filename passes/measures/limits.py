"""Limits that keep NaN: XLA on CPU may drop it from a maximum of many elements."""

from typing import Any

import jax
import jax.numpy as jnp


def at_least(x: jax.Array, least: Any) -> jax.Array:
    """The larger of both, NaN where x is.

    >>> at_least(jnp.array([1.0, 3.0, jnp.nan]), 2).tolist()
    [2.0, 3.0, nan]
    """
    return jnp.where(x < least, jnp.asarray(least, x.dtype), x)
