"""Creation: tensors of numbers that are known. What PyTorch leaves unset is zero."""

from typing import Any

import jax.numpy as jnp

from hlo_surgery.torch.aten.operators import Made, array, operator


@operator("full.default", "full_like.default", "new_full.default", "fill.Scalar")
def _full(made: Made, _: Any, value: Any, **__: Any) -> Any:
    return jnp.full(made.shape, array(value, made.dtype))


@operator("scalar_tensor.default")
def _scalar(made: Made, value: Any, **_: Any) -> Any:
    return array(value, made.dtype)


@operator(
    "empty.memory_format",
    "empty_like.default",
    "empty_permuted.default",
    "empty_strided.default",
    "new_empty.default",
    "new_empty_strided.default",
    "new_zeros.default",
    "zeros.default",
    "zeros_like.default",
)
def _zeros(made: Made, *_: Any, **__: Any) -> Any:
    return jnp.zeros(made.shape, made.dtype)


@operator("new_ones.default", "ones.default", "ones_like.default")
def _ones(made: Made, *_: Any, **__: Any) -> Any:
    return jnp.ones(made.shape, made.dtype)


@operator("arange.start_step")
def _arange(made: Made, start: Any, end: Any, step: Any = 1, **_: Any) -> Any:
    count = jnp.arange(made.shape[0]).astype(made.dtype)
    return array(start, made.dtype) + count * array(step, made.dtype)


@operator("eye.default", "eye.m")
def _eye(made: Made, *_: Any, **__: Any) -> Any:
    return jnp.eye(*made.shape, dtype=made.dtype)
