"""Joins: how what is found of the parts of a batch, one after the other, is that of the whole.

    second moments of K parts, as many examples in each     =>  their mean
    norms of the examples of each part, [M]                 =>  all of them, [B]

`members` [K, M]: the examples of each part, by their numbers in the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.measures.moments import squared_magnitude

Members = npt.NDArray[Any]


@dataclass(frozen=True)
class Join:
    """`start(shape, dtype, parts)`: before the first part; `add(state, found, part)`: with a part;
    `end(state, members)`: what the whole has.
    """

    start: Callable[[tuple[int, ...], Any, int], jax.Array]
    add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    end: Callable[[jax.Array, Members], jax.Array]


def _zeros(shape: tuple[int, ...], dtype: Any, parts: int) -> jax.Array:
    return jnp.zeros(shape, dtype)


def _added(state: jax.Array, found: jax.Array, part: jax.Array) -> jax.Array:
    return state + found


def _same(state: jax.Array, members: Members) -> jax.Array:
    return state


def _divided(state: jax.Array, members: Members) -> jax.Array:
    return state / len(members)


def _stack(shape: tuple[int, ...], dtype: Any, parts: int) -> jax.Array:
    return jnp.zeros((parts, *shape), dtype)


def _stacked(state: jax.Array, found: jax.Array, part: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(state, found, part, 0)


def _in_batch_order(state: jax.Array, members: Members) -> jax.Array:
    """[K, M, ...] -> [B, ...]; without a gather where parts are runs or strides of the batch."""
    numbers = np.arange(members.size)
    if np.array_equal(members.ravel(), numbers):
        return state.reshape(-1, *state.shape[2:])
    if np.array_equal(members.T.ravel(), numbers):
        return jnp.swapaxes(state, 0, 1).reshape(-1, *state.shape[2:])
    return state.reshape(-1, *state.shape[2:])[np.argsort(members.ravel())]


def _spread(state: jax.Array, found: jax.Array, part: jax.Array) -> jax.Array:
    """Of the first parts and one more, [squares about the mean, mean]: what was off from the mean
    of its part is off from that of all by so much more (Chan, Golub and LeVeque, 1983).
    """
    square, mean = state
    variance, own = found
    off, before = own - mean, part.astype(mean.real.dtype)
    square = square + variance + squared_magnitude(off) * before / (before + 1)
    return jnp.stack([square, mean + off / (before + 1)])


def _variance(state: jax.Array, members: Members) -> jax.Array:
    return jnp.real(state[0]) / len(members)


SUMS = Join(_zeros, _added, _same)
MEANS = Join(_zeros, _added, _divided)
ROWS = Join(_stack, _stacked, _in_batch_order)
# Of variances with the means that they are about, [2, *parameter].
SPREADS = Join(_zeros, _spread, _variance)
