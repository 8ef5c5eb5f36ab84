"""Resampling along the last dimensions: each place of the result is a weighted sum of places.

That is a product with one matrix for each dimension, whose transposes are the gradients.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import Precision

from hlo_surgery.torch.aten.operators import Made, array, operator

# The weights of a dimension's places: [places made, places].
Weights = Any


@operator("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_average(made: Made, x: Any, sizes: Sequence[int]) -> Any:
    return _resampled(x, _adaptive_weights(x.shape[-len(sizes) :], sizes))


def _adaptive_average_backward(count: int, _: Made, cotangent: Any, x: Any) -> Any:
    weights = _adaptive_weights(x.shape[-count:], cotangent.shape[-count:])
    return _transposed(cotangent, weights)


def _nearest_backward(
    count: int, _: Made, cotangent: Any, sizes: Any, input_sizes: Any, *scales: Any
) -> Any:
    given = [*scales, *[None] * (count - len(scales))]
    each = zip(input_sizes[-count:], cotangent.shape[-count:], given, strict=True)
    return _transposed(cotangent, [_nearest(*size) for size in each])


def _linear_backward(
    count: int, _: Made, cotangent: Any, sizes: Any, input_sizes: Any, align: bool, *scales: Any
) -> Any:
    given = [*scales, *[None] * (count - len(scales))]
    each = zip(input_sizes[-count:], cotangent.shape[-count:], given, strict=True)
    return _transposed(cotangent, [_linear(*size, align) for size in each])


for _count in (2, 3):
    operator(f"_adaptive_avg_pool{_count}d_backward.default")(
        partial(_adaptive_average_backward, _count)
    )
for _count in (1, 2, 3):
    operator(f"upsample_nearest{_count}d_backward.default")(partial(_nearest_backward, _count))
for _name, _count in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3)):
    operator(f"upsample_{_name}_backward.default")(partial(_linear_backward, _count))


def _resampled(x: Any, weights: Sequence[Weights]) -> Any:
    """The product with each dimension's weights."""
    for number, each in enumerate(weights):
        dim = x.ndim - len(weights) + number
        product = jnp.tensordot(x, array(each, x.dtype), (dim, 1), precision=Precision.HIGHEST)
        x = jnp.moveaxis(product, -1, dim)
    return x


def _transposed(cotangent: Any, weights: Sequence[Weights]) -> Any:
    return _resampled(cotangent, [each.T for each in weights])


def _adaptive_weights(sizes: Sequence[int], made: Sequence[int]) -> list[Weights]:
    """Place i averages the places from floor(i n / m) up to ceil((i + 1) n / m)."""
    found: list[Weights] = []
    for size, count in zip(sizes, made, strict=True):
        weights = np.zeros((count, size))
        for i in range(count):
            start, end = i * size // count, -(-(i + 1) * size // count)
            weights[i, start:end] = 1 / (end - start)
        found.append(weights)
    return found


def _nearest(size: int, made: int, scale: float | None) -> Weights:
    """Place i is that at floor(i / scale)."""
    step = np.float32(size / made if scale is None else 1 / scale)
    places = np.minimum((np.arange(made) * step).astype(int), size - 1)
    return np.eye(size)[places]


def _linear(size: int, made: int, scale: float | None, align: bool) -> Weights:
    """Places lie between two others; with `align` the outermost lie on the outermost, else pixels'
    centres are scaled.
    """
    if align:
        where = np.arange(made) * ((size - 1) / (made - 1) if made > 1 else 0)
    else:
        step = size / made if scale is None else 1 / scale
        where = np.maximum((np.arange(made) + 0.5) * step - 0.5, 0)
    low = np.minimum(where.astype(int), size - 1)
    high, share = np.minimum(low + 1, size - 1), where - low
    return np.eye(size)[low] * (1 - share)[:, None] + np.eye(size)[high] * share[:, None]
