"""Convolution by patches: given one with a small result, a contraction of its window's patches.

    %g = convolution %x, %dy    =>    %p[k, ...] = what %dy covers of %x at place k
                                      %g = dot_general %p, %dy

The gradient of a filter is such a convolution: its window is as large as an image, its result as
small as the filter. XLA's own convolutions are slow there on CPU, above all within loops; and
lifted over examples that lie on several devices, XLA (of jaxlib 0.10 and 0.12) computes wrong
numbers, for `jit(vmap(grad(loss)))` as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import flags, integer, ones_unless_given, padding, precision
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, stablehlo
from hlo_surgery.passes.raising.contractions import with_element_types
from hlo_surgery.passes.raising.table import Raised


@dataclass(frozen=True)
class Window:
    """A window over the image's dimension `dim`: its `length`, and `places` of the result."""

    dim: int
    length: int
    places: int
    stride: int
    dilation: int
    padding: tuple[int, int]
    image_dilation: int


def convolution_by_patches(op: Operation, result: np.dtype | None = None) -> Raised | None:
    """The convolution as a function of its operands; None where its input features are grouped.

    It is of another element type, if `result` says so.
    """
    if integer(op, "feature_group_count") != 1:
        return None
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    windows, groups = windows_of(op), integer(op, "batch_group_count")
    spatial = list(numbers.kernel_spatial_dimensions)
    reverse = _reversed(op)
    order = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]

    image_summed = [numbers.input_feature_dimension, *numbers.input_spatial_dimensions]
    window_summed = [numbers.kernel_input_feature_dimension, *spatial]

    def contract(image: jax.Array, window: jax.Array, accumulator: np.dtype) -> jax.Array:
        batch, features = numbers.input_batch_dimension, numbers.kernel_output_feature_dimension
        # Of one example where the window is over all of them.
        lengths = [window.shape[dim] for dim in spatial]
        own = [replace(w, length=n) for w, n in zip(windows, lengths, strict=True)]
        patches = _split(patches_under(image, own, batch), batch + len(windows), groups)
        filters = _split(lax.rev(window, reverse), features, groups)
        summed = (
            _behind(batch, len(windows) + 1, *image_summed),
            _behind(features, 1, *window_summed),
        )
        together = ((batch + len(windows),), (features,))
        how = precision(op)
        made = lax.dot_general(
            patches, filters, (summed, together), how, preferred_element_type=accumulator
        )
        return _as_result(made, len(windows), order)

    return with_element_types(op, contract, result or dtype_of(op.results[0]))


def positions_of_convolution(
    op: Operation, image: jax.Array, window: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """An ungrouped convolution's factors, [positions, places * batch] and [positions, features]."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    windows, batch = windows_of(op), numbers.input_batch_dimension
    patches = patches_under(image, windows, batch)
    positions = [numbers.input_feature_dimension, *numbers.input_spatial_dimensions]
    first = jnp.moveaxis(patches, _behind(batch, len(windows), *positions), range(len(positions)))
    second = lax.rev(window, _reversed(op))
    kernel = [numbers.kernel_input_feature_dimension, *numbers.kernel_spatial_dimensions]
    second = jnp.moveaxis(second, kernel, range(len(kernel)))
    count = math.prod(second.shape[:-1])
    return first.reshape(count, -1), second.reshape(count, -1)


def windows_of(op: Operation) -> list[Window]:
    """The window's way over each spatial dimension."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, result = (
        numbers.input_spatial_dimensions,
        numbers.kernel_spatial_dimensions,
        op.results[0],
    )
    count = len(image)
    return [
        Window(*each)
        for each in zip(
            image,
            [mlir.shape(op.operands[1])[d] for d in kernel],
            [mlir.shape(result)[d] for d in numbers.output_spatial_dimensions],
            ones_unless_given(op, "window_strides", count),
            ones_unless_given(op, "rhs_dilation", count),
            padding(op, count),
            ones_unless_given(op, "lhs_dilation", count),
            strict=True,
        )
    ]


def patches_under(image: jax.Array, windows: Sequence[Window], batch: int) -> jax.Array:
    """What lies under the window at each place, places being dimensions in front of `batch`.

    They are there since the contraction then needs no patches moved where the batch lies first or
    last.
    """
    config = [(0, 0, 0)] * image.ndim
    for w in windows:
        config[w.dim] = (*w.padding, w.image_dilation - 1)
    patches = lax.pad(image, jnp.zeros((), image.dtype), config)
    for number, w in enumerate(windows):
        dim = w.dim + (number if w.dim > batch else 0)
        reach = (w.length - 1) * w.dilation + 1
        starts = [place * w.stride for place in range(w.places)]
        slices = [lax.slice_in_dim(patches, at, at + reach, w.dilation, dim) for at in starts]
        patches = jnp.stack(slices, batch + number)
    return patches


def _reversed(op: Operation) -> list[int]:
    """The window's dimensions that are reversed."""
    spatial = stablehlo.ConvDimensionNumbers(
        op.attributes["dimension_numbers"]
    ).kernel_spatial_dimensions
    return [
        d
        for d, reverse in zip(spatial, flags(op, "window_reversal", len(spatial)), strict=True)
        if reverse
    ]


def _split(x: jax.Array, dim: int, groups: int) -> jax.Array:
    """A dimension as [groups, rest]."""
    return x.reshape(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])


def _behind(dim: int, added: int, *dims: int) -> tuple[int, ...]:
    """Where dimensions are once `added` ones have come in at or just behind `dim`."""
    return tuple(d + (added if d > dim else 0) for d in dims)


def _as_result(made: jax.Array, spatial: int, order: Sequence[int]) -> jax.Array:
    """[groups, *places, batch, features] with the dimensions of the convolution's result."""
    grouped = jnp.moveaxis(made, 0, 1 + spatial)
    merged = grouped.reshape(*grouped.shape[: 1 + spatial], math.prod(grouped.shape[1 + spatial :]))
    first = jnp.moveaxis(merged, (spatial, spatial + 1), (0, 1))
    return first.transpose([order.index(d) for d in range(len(order))])
