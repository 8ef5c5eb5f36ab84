"""Moves: what makes of tensors others with the same numbers in them, elsewhere."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, dims_of, operator


@operator(
    "alias.default",
    "alias_copy.default",
    "clone.default",
    "detach.default",
    "detach_copy.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "prims.clone.default",
    "prims.view_of.default",
)
def _itself(_: Made, x: Any, **__: Any) -> Any:
    return x


@operator(
    "_unsafe_view.default",
    "prims.collapse_view.default",
    "prims.split_dim.default",
    "prims.squeeze.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_copy.default",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "unsqueeze.default",
    "unsqueeze_copy.default",
    "view.default",
    "view_copy.default",
)
def _reshape(made: Made, x: Any, *_: Any) -> Any:
    """The row-major order of elements is kept."""
    return jnp.reshape(x, made.shape)


@operator("prims.broadcast_in_dim.default")
def _expand(made: Made, x: Any, _: Any, dims: Any) -> Any:
    return jax.lax.broadcast_in_dim(x, made.shape, tuple(dims))


@operator("permute.default", "permute_copy.default", "prims.transpose.default")
def _permute(_: Made, x: Any, dims: Any) -> Any:
    return jnp.transpose(x, dims_of(dims, x.ndim))


@operator("select.int", "select_copy.int")
def _select(_: Made, x: Any, dim: int, index: int) -> Any:
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


@operator("slice.Tensor", "slice_copy.Tensor")
def _slice(_: Made, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(*[slice(None)] * (dim % x.ndim), slice(start, end, step))]


@operator("diagonal.default", "diagonal_copy.default")
def _diagonal(_: Made, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, dim1, dim2)


@operator("split_with_sizes.default", "split_with_sizes_copy.default")
def _split(_: Made, x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    return jnp.split(x, list(itertools.accumulate(sizes))[:-1], axis=dim)


@operator("split.Tensor", "split_copy.Tensor")
def _split_evenly(_: Made, x: Any, size: int, dim: int = 0) -> list[Any]:
    return jnp.split(x, [*range(size, x.shape[dim], size)] if size else [], axis=dim)


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


@operator("prims.rev.default")
def _flip(_: Made, x: Any, dims: Any) -> Any:
    return jnp.flip(x, tuple(dims))


@operator("constant_pad_nd.default")
def _pad(made: Made, x: Any, pad: Any, value: Any = 0) -> Any:
    """Pairs of what is put before and behind, from the last dimension on; below zero it is cut."""
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    config = [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return jax.lax.pad(x, array(value, made.dtype), config)


@operator("copy.default")
def _copy(made: Made, x: Any, source: Any, *_: Any) -> Any:
    return jnp.broadcast_to(array(source, made.dtype), x.shape)


@operator("diagonal_scatter.default")
def _diagonal_scatter(
    made: Made, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    places = jnp.arange(math.prod(x.shape)).reshape(x.shape)
    flat = jnp.diagonal(places, offset, dim1, dim2)
    values = array(source, made.dtype)
    return x.ravel().at[flat.ravel()].set(values.ravel()).reshape(x.shape)
