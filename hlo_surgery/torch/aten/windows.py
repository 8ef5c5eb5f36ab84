"""Windows: pooling and resampling along the last dimensions.

Each place of an average is a weighted sum of places. That is a product with one matrix for each
dimension, whose transposes are the gradients. PyTorch itself makes the matrices, of places one at a
time.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import Precision

from hlo_surgery.torch.aten.operators import Made, array, operator, rows
from hlo_surgery.torch.pytorch import aten, torch


def _max_pool_backward(count: int, _: Made, cotangent: Any, x: Any, *how_and_indices: Any) -> Any:
    """Each number is added at the place of x that its index says."""
    indices = how_and_indices[-1]
    outer, places = x.shape[:-count], math.prod(x.shape[-count:])

    def one(numbers: Any, at: Any) -> Any:
        return jnp.zeros(places, x.dtype).at[at].add(numbers)

    put = one
    for _ in outer:
        put = jax.vmap(put)
    flat = (*outer, -1)
    return put(cotangent.reshape(flat), indices.reshape(flat)).reshape(x.shape)


def _each(sizes: Any, count: int) -> list[int]:
    """A size for each dimension, where PyTorch may have one for all, or none."""
    given = [sizes] if isinstance(sizes, int) else list(sizes)
    return given * count if len(given) == 1 else given


# Of one dimension: a matrix [places made, places].
Weights = Sequence[Any]


@operator("avg_pool2d.default", "avg_pool3d.default")
def _average(_: Made, x: Any, kernel: Sequence[int], *how: Any) -> Any:
    return _resampled(x, _averages(x.shape[-len(kernel) :], kernel, *how))


@operator("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def _average_backward(_: Made, cotangent: Any, x: Any, kernel: Sequence[int], *how: Any) -> Any:
    return _transposed(cotangent, _averages(x.shape[-len(kernel) :], kernel, *how))


def _averages(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Weights:
    """Averages along one dimension after another; by a divisor of its own, sums of them."""
    count = len(kernel)
    each = zip(sizes, kernel, _each(stride, count) or kernel, _each(padding, count), strict=True)
    averages = [
        _matrix(aten.avg_pool1d, n, [k], [s], [p], ceil_mode, count_include_pad)
        for n, k, s, p in each
    ]
    if divisor is None:
        return averages
    first, *others = [(average != 0).astype(average.dtype) for average in averages]
    return [first / divisor, *others]


@operator("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_average(_: Made, x: Any, sizes: Sequence[int]) -> Any:
    return _resampled(x, _adaptive(x.shape[-len(sizes) :], sizes))


def _adaptive_average_backward(count: int, _: Made, cotangent: Any, x: Any) -> Any:
    return _transposed(cotangent, _adaptive(x.shape[-count:], cotangent.shape[-count:]))


def _upsampled_backward(
    one: Any, count: int, _: Made, cotangent: Any, sizes: Any, input_sizes: Any, *how: Any
) -> Any:
    align = [x for x in how[:1] if isinstance(x, bool)]
    scales = [*how[len(align) :], *[None] * count]
    each = zip(input_sizes[-count:], sizes, scales, strict=False)
    return _transposed(cotangent, [_matrix(one, n, [m], *align, scale) for n, m, scale in each])


_nearest = partial(_upsampled_backward, aten.upsample_nearest1d)
_linear = partial(_upsampled_backward, aten.upsample_linear1d)
rows(
    {
        "max_pool2d_with_indices_backward.default": partial(_max_pool_backward, 2),
        "max_pool3d_with_indices_backward.default": partial(_max_pool_backward, 3),
        "_adaptive_avg_pool2d_backward.default": partial(_adaptive_average_backward, 2),
        "_adaptive_avg_pool3d_backward.default": partial(_adaptive_average_backward, 3),
        "upsample_nearest1d_backward.default": partial(_nearest, 1),
        "upsample_nearest2d_backward.default": partial(_nearest, 2),
        "upsample_nearest3d_backward.default": partial(_nearest, 3),
        "upsample_linear1d_backward.default": partial(_linear, 1),
        "upsample_bilinear2d_backward.default": partial(_linear, 2),
        "upsample_trilinear3d_backward.default": partial(_linear, 3),
    }
)


def _adaptive(sizes: Sequence[int], made: Sequence[int]) -> Weights:
    pool = aten.adaptive_avg_pool1d
    return [_matrix(pool, n, [m]) for n, m in zip(sizes, made, strict=True)]


def _matrix(one: Any, size: int, *how: Any) -> Any:
    """What an operator of one dimension makes of each place alone."""
    return one(torch.eye(size, dtype=torch.float64, device="cpu")[None], *how)[0].T.numpy()


def _resampled(x: Any, weights: Weights) -> Any:
    """The product with each dimension's weights."""
    for number, each in enumerate(weights):
        dim = x.ndim - len(weights) + number
        product = jnp.tensordot(x, array(each, x.dtype), (dim, 1), precision=Precision.HIGHEST)
        x = jnp.moveaxis(product, -1, dim)
    return x


def _transposed(cotangent: Any, weights: Weights) -> Any:
    return _resampled(cotangent, [each.T for each in weights])
