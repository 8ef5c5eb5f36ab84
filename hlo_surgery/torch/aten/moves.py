"""Moves: what makes of tensors others with the same numbers in them, elsewhere."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, dims_of, operator, rows

ITSELF = """alias.default alias_copy.default clone.default detach.default detach_copy.default
lift_fresh.default lift_fresh_copy.default prims.clone.default prims.view_of.default"""
# The row-major order of elements is kept.
RESHAPES = """_unsafe_view.default prims.collapse_view.default prims.split_dim.default
prims.squeeze.default squeeze.default squeeze.dim squeeze.dims squeeze_copy.default squeeze_copy.dim
squeeze_copy.dims unsqueeze.default unsqueeze_copy.default view.default view_copy.default"""

rows(
    {
        ITSELF: lambda _, x, **__: x,
        RESHAPES: lambda made, x, *_: jnp.reshape(x, made.shape),
        "prims.broadcast_in_dim.default": lambda made, x, _, dims: jax.lax.broadcast_in_dim(
            x, made.shape, tuple(dims)
        ),
        "permute.default permute_copy.default prims.transpose.default": lambda _, x, dims: (
            jnp.transpose(x, dims_of(dims, x.ndim))
        ),
        "select.int select_copy.int": lambda _, x, dim, index: jax.lax.index_in_dim(
            x, index, dim, keepdims=False
        ),
        "slice.Tensor slice_copy.Tensor": lambda _, x, dim=0, start=None, end=None, step=1: x[
            (*[slice(None)] * (dim % x.ndim), slice(start, end, step))
        ],
        "diagonal.default diagonal_copy.default": lambda _, x, offset=0, dim1=0, dim2=1: (
            jnp.diagonal(x, offset, dim1, dim2)
        ),
        "split_with_sizes.default split_with_sizes_copy.default": lambda _, x, sizes, dim=0: (
            jnp.split(x, list(itertools.accumulate(sizes))[:-1], axis=dim)
        ),
        "split.Tensor split_copy.Tensor": lambda _, x, size, dim=0: jnp.split(
            x, [*range(size, x.shape[dim], size)] if size else [], axis=dim
        ),
        "prims.rev.default": lambda _, x, dims: jnp.flip(x, tuple(dims)),
        "copy.default": lambda made, x, source, *_: jnp.broadcast_to(
            array(source, made.dtype), x.shape
        ),
    }
)


@operator("cat.default", "prims.cat.default")
def _cat(made: Made, tensors: Any, dim: int = 0) -> Any:
    """PyTorch takes any number of empty tensors of one dimension along."""
    kept = [x for x in tensors if x.ndim == len(made.shape) and x.shape != (0,)]
    if not kept:
        return jnp.zeros(made.shape, made.dtype)
    return jnp.concatenate([array(x, made.dtype) for x in kept], axis=dim)


@operator("unfold.default", "unfold_copy.default")
def _unfold(made: Made, x: Any, dim: int, size: int, step: int) -> Any:
    """Windows along a dimension, whose places come last."""
    starts = range(0, x.shape[dim] - size + 1, step)
    cuts = [jax.lax.slice_in_dim(x, start, start + size, axis=dim) for start in starts]
    return jnp.stack([jnp.moveaxis(cut, dim, -1) for cut in cuts], axis=dim % x.ndim)


@operator("constant_pad_nd.default")
def _pad(made: Made, x: Any, pad: Any, value: Any = 0) -> Any:
    """Pairs of what is put before and behind, from the last dimension on; below zero it is cut."""
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    config = [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return jax.lax.pad(x, array(value, made.dtype), config)


@operator("diagonal_scatter.default")
def _diagonal_scatter(
    made: Made, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    places = jnp.arange(math.prod(x.shape)).reshape(x.shape)
    flat = jnp.diagonal(places, offset, dim1, dim2)
    values = array(source, made.dtype)
    return x.ravel().at[flat.ravel()].set(values.ravel()).reshape(x.shape)
