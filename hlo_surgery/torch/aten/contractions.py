"""Contractions: products of matrices, and convolutions with their transposes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import Precision

from hlo_surgery.torch.aten.operators import Made, operator


@operator("mm.default", "bmm.default")
def _matmul(_: Made, x: Any, y: Any) -> Any:
    return jnp.matmul(x, y, precision=Precision.HIGHEST)


@operator("_trilinear.default")
def _trilinear(_: Made, *how: Any) -> Any:
    """The sum of products of three tensors, each with dimensions of one put in."""
    *factors, sums = how[:7]
    expanded = [
        jnp.expand_dims(x, tuple(dims)) for x, dims in zip(factors[:3], factors[3:], strict=True)
    ]
    return jnp.sum(expanded[0] * expanded[1] * expanded[2], axis=tuple(sums))


@operator("convolution.default")
def _convolution(made: Made, x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    convolved = _convolved(made.shape, x, weight, *how)
    if bias is None:
        return convolved
    return convolved + bias.reshape(-1, *[1] * (x.ndim - 2))


@operator("convolution_backward.default")
def _convolution_backward(
    _: Made, cotangent: Any, x: Any, weight: Any, bias_sizes: Any, *how_and_wanted: Any
) -> list[Any]:
    """A convolution is linear in each operand, so that its transposes are the gradients."""
    *how, wanted = how_and_wanted
    of_x = of_weight = of_bias = None
    if wanted[0]:
        back = jax.linear_transpose(lambda x: _convolved(cotangent.shape, x, weight, *how), x)
        (of_x,) = back(cotangent)
    if wanted[1]:
        back = jax.linear_transpose(lambda w: _convolved(cotangent.shape, x, w, *how), weight)
        (of_weight,) = back(cotangent)
    if wanted[2]:
        of_bias = jnp.sum(cotangent, axis=(0, *range(2, cotangent.ndim)))
    return [of_x, of_weight, of_bias]


def _convolved(
    shape: Sequence[int],
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Any,
    groups: int,
) -> Any:
    """Examples, channels and places in this order; weights [out, in / groups, *places], those of a
    transposed convolution, which makes this `shape`, [in, out / groups, *places].
    """
    stride, padding, dilation = (
        list(sizes) * (x.ndim - 2) if len(sizes) == 1 else list(sizes)
        for sizes in (stride, padding, dilation)
    )

    def correlated(x: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            weight,
            stride,
            [(p, p) for p in padding],
            rhs_dilation=dilation,
            feature_group_count=groups,
            precision=Precision.HIGHEST,
        )

    if not transposed:
        return correlated(x)
    return jax.linear_transpose(correlated, jax.ShapeDtypeStruct(shape, x.dtype))(x)[0]
