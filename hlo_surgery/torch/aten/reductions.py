"""Reductions over dimensions, cumulation along one, and what sorts along one."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, dims_of, operator, rows


def _reduced(function: Any, made: Made, x: Any, dims: Any, **_: Any) -> Any:
    return function(array(x, made.dtype), axis=dims_of(dims, x.ndim))


def _cumulated(function: Any, made: Made, x: Any, dim: int, **_: Any) -> Any:
    return function(array(x, made.dtype), axis=dim) if x.ndim else array(x, made.dtype)


def _place(function: Any, _: Made, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return function(x, axis=dim, keepdims=keepdim)


def _extreme(value: Any, place: Any, _: Made, x: Any, dim: int, keepdim: bool = False) -> Any:
    return value(x, dim, keepdims=keepdim), place(x, dim, keepdims=keepdim)


def _sorted(x: Any, dim: int, descending: bool, most: int | None = None) -> tuple[Any, Any]:
    """The numbers, or so many of them, in order, and where they were; as stable as PyTorch's."""
    order = jnp.argsort(x, axis=dim, descending=descending)
    order = jax.lax.slice_in_dim(order, 0, most, axis=dim % x.ndim) if x.ndim else order
    return jnp.take_along_axis(x, order, axis=dim), order


rows(
    {
        "prims.sum.default": partial(_reduced, jnp.sum),
        "prims.prod.default": partial(_reduced, jnp.prod),
        "prims.amax.default": partial(_reduced, jnp.max),
        "prims.amin.default": partial(_reduced, jnp.min),
        "cumsum.default": partial(_cumulated, jnp.cumsum),
        "cumprod.default": partial(_cumulated, jnp.cumprod),
        "argmax.default": partial(_place, jnp.argmax),
        "argmin.default": partial(_place, jnp.argmin),
        "max.dim": partial(_extreme, jnp.max, jnp.argmax),
        "min.dim": partial(_extreme, jnp.min, jnp.argmin),
        "sort.default": lambda _, x, dim=-1, descending=False: _sorted(x, dim, descending),
        "sort.stable": lambda _, x, *, dim=-1, descending=False, **__: _sorted(x, dim, descending),
        "topk.default": lambda _, x, k, dim=-1, largest=True, *__: _sorted(x, dim, largest, k),
    }
)


@operator("prims.var.default")
def _var(made: Made, x: Any, dims: Any, correction: Any = 1, **_: Any) -> Any:
    """By default Bessel's correction, a one, is made."""
    axes = dims_of(dims, x.ndim)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    freedom = max(x.size // max(mean.size, 1) - (1 if correction is None else correction), 0)
    return jnp.sum(jnp.square(x - mean), axis=axes) / array(freedom, made.dtype)


@operator("native_group_norm.default")
def _group_norm(
    made: Made,
    x: Any,
    weight: Any,
    bias: Any,
    examples: int,
    channels: int,
    _: int,
    groups: int,
    epsilon: float,
) -> tuple[Any, Any, Any]:
    """Y. Wu and K. He, Group Normalization, section 3.1; beside it each group's mean and 1 / sigma.
    Sums of short floats are made in long ones, as PyTorch does.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    rows = array(x, wide).reshape(examples, groups, -1)
    mean = jnp.mean(rows, axis=-1, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.var(rows, axis=-1, keepdims=True) + array(epsilon, wide))
    normal = ((rows - mean) * rstd).reshape(x.shape)
    along = (channels, *[1] * (x.ndim - 2))
    scaled = normal if weight is None else normal * weight.reshape(along)
    shifted = scaled if bias is None else scaled + bias.reshape(along)
    flat = [jnp.squeeze(each, -1).astype(made.dtype) for each in (mean, rstd)]
    return shifted.astype(made.dtype), flat[0], flat[1]
