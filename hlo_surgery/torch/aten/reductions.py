"""Reductions over dimensions, cumulation along one, and what sorts along one."""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, dims_of, operator


@operator("prims.sum.default")
def _sum(made: Made, x: Any, dims: Any, **_: Any) -> Any:
    return jnp.sum(array(x, made.dtype), axis=dims_of(dims, x.ndim))


@operator("prims.prod.default")
def _prod(made: Made, x: Any, dims: Any, **_: Any) -> Any:
    return jnp.prod(array(x, made.dtype), axis=dims_of(dims, x.ndim))


@operator("prims.amax.default")
def _amax(_: Made, x: Any, dims: Any, **__: Any) -> Any:
    return jnp.max(x, axis=dims_of(dims, x.ndim))


@operator("prims.amin.default")
def _amin(_: Made, x: Any, dims: Any, **__: Any) -> Any:
    return jnp.min(x, axis=dims_of(dims, x.ndim))


@operator("prims.var.default")
def _var(made: Made, x: Any, dims: Any, correction: Any = 1, **_: Any) -> Any:
    """By default Bessel's correction, a one, is made."""
    axes = dims_of(dims, x.ndim)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    freedom = max(x.size // max(mean.size, 1) - (1 if correction is None else correction), 0)
    return jnp.sum(jnp.square(x - mean), axis=axes) / array(freedom, made.dtype)


@operator("argmax.default")
def _argmax(_: Made, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmax(x, axis=dim, keepdims=keepdim)


@operator("argmin.default")
def _argmin(_: Made, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmin(x, axis=dim, keepdims=keepdim)


@operator("max.dim")
def _max(_: Made, x: Any, dim: int, keepdim: bool = False) -> Any:
    return jnp.max(x, dim, keepdims=keepdim), jnp.argmax(x, dim, keepdims=keepdim)


@operator("min.dim")
def _min(_: Made, x: Any, dim: int, keepdim: bool = False) -> Any:
    return jnp.min(x, dim, keepdims=keepdim), jnp.argmin(x, dim, keepdims=keepdim)


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


@operator("cumsum.default")
def _cumsum(made: Made, x: Any, dim: int, **_: Any) -> Any:
    return jnp.cumsum(array(x, made.dtype), axis=dim) if x.ndim else array(x, made.dtype)


@operator("cumprod.default")
def _cumprod(made: Made, x: Any, dim: int, **_: Any) -> Any:
    return jnp.cumprod(array(x, made.dtype), axis=dim) if x.ndim else array(x, made.dtype)


@operator("sort.default")
def _sort(_: Made, x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _stable_sort(_, x, dim=dim, descending=descending)


@operator("sort.stable")
def _stable_sort(
    _: Made, x: Any, *, stable: bool | None = True, dim: int = -1, descending: bool = False
) -> Any:
    order = jnp.argsort(x, axis=dim, descending=descending)
    return jnp.take_along_axis(x, order, axis=dim), order


@operator("topk.default")
def _topk(_: Made, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    order = jnp.argsort(x, axis=dim, descending=largest)
    order = jax.lax.slice_in_dim(order, 0, k, axis=dim % x.ndim)
    return jnp.take_along_axis(x, order, axis=dim), order
