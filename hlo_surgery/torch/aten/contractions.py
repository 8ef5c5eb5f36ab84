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
def _convolution(_: Made, x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    convolved = _convolved(x, weight, *how)
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
        (of_x,) = jax.linear_transpose(lambda x: _convolved(x, weight, *how), x)(cotangent)
    if wanted[1]:
        transpose = jax.linear_transpose(lambda weight: _convolved(x, weight, *how), weight)
        (of_weight,) = transpose(cotangent)
    if wanted[2]:
        of_bias = jnp.sum(cotangent, axis=(0, *range(2, cotangent.ndim)))
    return [of_x, of_weight, of_bias]


def _convolved(
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Examples, channels and places in this order; weights [out, in / groups, *places], those of a
    transposed convolution [in, out / groups, *places].
    """
    stride, padding, dilation, output_padding = (
        _each(sizes, x.ndim - 2) for sizes in (stride, padding, dilation, output_padding)
    )
    if not transposed:
        pads = [(p, p) for p in padding]
        return _correlated(x, weight, stride, pads, [1] * len(stride), dilation, groups)
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    sides = zip(reach, padding, output_padding, strict=True)
    pads = [(r - p, r - p + more) for r, p, more in sides]
    turned = _turned(weight, groups)
    return _correlated(x, turned, [1] * len(stride), pads, stride, dilation, groups)


def _turned(weight: Any, groups: int) -> Any:
    """The weights of the convolution that a transposed one is: flipped, each group's in and out
    exchanged.
    """
    ins, outs, *places = weight.shape
    grouped = weight.reshape(groups, ins // groups, outs, *places)
    exchanged = jnp.swapaxes(grouped, 1, 2).reshape(groups * outs, ins // groups, *places)
    return jnp.flip(exchanged, tuple(range(2, weight.ndim)))


def _correlated(
    x: Any, weight: Any, stride: Any, pads: Any, spread: Any, dilation: Any, groups: int
) -> Any:
    return jax.lax.conv_general_dilated(
        x,
        weight,
        tuple(stride),
        pads,
        lhs_dilation=tuple(spread),
        rhs_dilation=tuple(dilation),
        feature_group_count=groups,
        precision=Precision.HIGHEST,
    )


def _each(sizes: Sequence[int], count: int) -> list[int]:
    """A size for each place, where PyTorch may have one for all."""
    return list(sizes) * count if len(sizes) == 1 else list(sizes)
