"""Indexing: looking up and putting at numbers that tensors hold.

Where PyTorch raises for an index that lies outside, what is found there is NaN, and for integers
the least of them.
"""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, operator, rows


@operator("index_put.default", "_unsafe_index_put.default")
def _index_put(made: Made, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    at, new = x.at[_places(indices)], array(values, made.dtype)
    return at.add(new) if accumulate else at.set(new)


def _places(indices: Any) -> tuple[Any, ...]:
    """The index: None takes all of a dimension."""
    return tuple(slice(None) if index is None else index for index in indices)


def _first(x: Any, index: Any) -> Any:
    """The first of x in each dimension, as many as the index has."""
    return jax.lax.slice(x, [0] * x.ndim, index.shape)


def _cut(x: Any, dim: int, index: Any) -> Any:
    """The first of x, as many as the index has, in all dimensions but this one."""
    if not x.ndim:
        return x
    sizes = list(index.shape)
    sizes[dim] = x.shape[dim]
    return jax.lax.slice(x, [0] * x.ndim, sizes)


def _grid(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """What numbers the index means in each dimension of x."""
    if not x.ndim:
        return ()
    grid = [jax.lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(x.ndim)]
    grid[dim] = index
    return tuple(grid)


rows(
    {
        "index.Tensor _unsafe_index.Tensor": lambda _, x, indices: x.at[_places(indices)].get(
            mode="fill"
        ),
        "gather.default": lambda _, x, dim, index, **__: jnp.take_along_axis(
            _cut(x, dim, index), index, axis=dim, mode="fill"
        ),
        "scatter.src": lambda made, x, dim, index, source: x.at[_grid(x, dim, index)].set(
            _first(array(source, made.dtype), index)
        ),
        "scatter.value": lambda made, x, dim, index, value: x.at[_grid(x, dim, index)].set(
            array(value, made.dtype)
        ),
        "scatter_add.default": lambda made, x, dim, index, source: x.at[_grid(x, dim, index)].add(
            _first(array(source, made.dtype), index)
        ),
    }
)
