"""Real examples: which are no padding, and how many; padding counts in no sum and no mean."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Padding:
    """`real`: which examples are none, [B]; `count`: how many, a traced number of 1 at least."""

    real: jax.Array
    count: Any


def without_padding(rows: jax.Array, padding: Padding | None) -> jax.Array:
    """Rows [B, ...], zero for padding."""
    return rows_where(None if padding is None else padding.real, rows)


def rows_where(counted: jax.Array | None, rows: jax.Array) -> jax.Array:
    """Rows [B, ...], zero where they are not `counted`, [B]; None where all are."""
    if counted is None:
        return rows
    return jnp.where(counted.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros_like(rows))


def flags_and_count(dtype: Any, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is real, and how many as a float; 1 where none is, so that a mean over none is zero.

    The number is NaN where a flag is neither 0 nor 1: nobody can say what such an example counts.
    """
    real = mask == 1
    count = jnp.maximum(jnp.sum(real, dtype=dtype), 1)
    return real, jnp.where(jnp.all(real | (mask == 0)), count, jnp.nan)


def nan_unless_flags(statistic: jax.Array, count: jax.Array) -> jax.Array:
    """What says that it is no statistic where the number of the real examples is NaN."""
    return nan_where(jnp.isnan(count), statistic)


def nan_where(wrong: jax.Array, statistic: jax.Array) -> jax.Array:
    """NaN where something is wrong; numbers of entries are -1 then, and flags, which say that
    something is, True.
    """
    if statistic.dtype == bool:
        return statistic | wrong
    nothing = jnp.nan if jnp.issubdtype(statistic.dtype, jnp.inexact) else -1
    return jnp.where(wrong, nothing, statistic)
