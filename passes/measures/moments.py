"""Moments: squares of magnitudes, variances from sums about any centre, and their bias.

Limits that keep NaN: XLA on CPU may drop it from a maximum of many elements.

Joins: how what is found of the parts of a batch, one after the other, is that of the whole.

    second moments of K parts, as many examples in each     =>  their mean
    norms of the examples of each part, [M]                 =>  all of them, [B]

`members` [K, M]: the examples of each part, by their numbers in the batch.

Real examples: which are no padding, and how many; padding counts in no sum and no mean.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax


def at_least(x: Array, least: Any) -> Array:
    """The larger of both, NaN where x is.

    >>> at_least(jnp.array([1.0, 3.0, jnp.nan]), 2).tolist()
    [2.0, 3.0, nan]
    """
    return jnp.where(x < least, jnp.asarray(least, x.dtype), x)


def squared_magnitude(g: Array) -> Array:
    """|g|**2, elementwise."""
    return lax.real(lax.mul(g, lax.conj(g))) if jnp.iscomplexobj(g) else lax.mul(g, g)


def central_moment(square: Array, mean: Array) -> Array:
    """The variance from the means of |g - c|**2 and g - c, any c: precise where c is near."""
    return at_least(square - squared_magnitude(mean), 0)


def unbiased(count: Any) -> Any:
    """n / (n - 1); NaN where so many examples have no variance."""
    if isinstance(count, Array):
        return jnp.where(count > 1, count / jnp.maximum(count - 1, 1), jnp.nan)
    return count / (count - 1) if count > 1 else math.nan


Members = npt.NDArray[Any]


@dataclass(frozen=True)
class Join:
    """`start(shape, dtype, parts)`: before the first part; `add(state, found, part)`: with a part;
    `end(state, members)`: what the whole has.
    """

    start: Callable[[tuple[int, ...], Any, int], Array]
    add: Callable[[Array, Array, Array], Array]
    end: Callable[[Array, Members], Array]


def _zeros(shape: tuple[int, ...], dtype: Any, parts: int) -> Array:
    return jnp.zeros(shape, dtype)


def _stack(shape: tuple[int, ...], dtype: Any, parts: int) -> Array:
    return jnp.zeros((parts, *shape), dtype)


def _stacked(state: Array, found: Array, part: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(state, found, part, 0)


def _in_batch_order(state: Array, members: Members) -> Array:
    """[K, M, ...] -> [B, ...]; without a gather where parts are runs of the batch."""
    rows, order = state.reshape(-1, *state.shape[2:]), np.argsort(members.ravel())
    return rows if np.array_equal(order, np.arange(members.size)) else rows[order]


def _spread(state: Array, found: Array, part: Array) -> Array:
    """Of the first parts and one more, [squares about the mean, mean]: what was off from the mean
    of its part is off from that of all by so much more (Chan, Golub and LeVeque, 1983).
    """
    square, mean = state
    variance, own = found
    off, before = own - mean, part.astype(mean.real.dtype)
    square = square + variance + squared_magnitude(off) * before / (before + 1)
    return jnp.stack([square, mean + off / (before + 1)])


SUMS = Join(_zeros, lambda state, found, part: state + found, lambda state, members: state)
MEANS = replace(SUMS, end=lambda state, members: state / len(members))
ROWS = Join(_stack, _stacked, _in_batch_order)
# Of variances with the means that they are about, [2, *parameter].
SPREADS = Join(_zeros, _spread, lambda state, members: jnp.real(state[0]) / len(members))


def without_padding(rows: Array, real: Array | None) -> Array:
    """Rows [B, ...], zero for padding: all that is not `real`, [B], where that is given."""
    if real is None:
        return rows
    return jnp.where(real.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros_like(rows))


def flags_and_count(dtype: Any, mask: Array) -> tuple[Array, Array]:
    """What is real, and how many as a float; 1 where none is, so that a mean over none is zero.

    The number is NaN where a flag is neither 0 nor 1: nobody can say what such an example counts.
    """
    real = mask == 1
    count = jnp.maximum(jnp.sum(real, dtype=dtype), 1)
    return real, jnp.where(jnp.all(real | (mask == 0)), count, jnp.nan)


def nan_where(wrong: Array, statistic: Array) -> Array:
    """NaN where something is wrong; numbers of entries are -1 then, and flags, which say that
    something is, True.
    """
    if statistic.dtype == bool:
        return statistic | wrong
    nothing = jnp.nan if jnp.issubdtype(statistic.dtype, jnp.inexact) else -1
    return jnp.where(wrong, nothing, statistic)
