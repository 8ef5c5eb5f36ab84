"""Convolution by patches: given one with a small result, a contraction of its window's patches.

    %g = convolution %x, %dy    =>    %p[k, ...] = what %dy covers of %x at place k
                                      %g = dot_general %p, %dy

The gradient of a filter is such a convolution: its window is as large as an image, its result as
small as the filter. XLA's own convolutions are slow there on CPU, above all within loops, unless
the operands lie as its library has them; and lifted over examples that lie on several devices, XLA
(of jaxlib 0.10 and 0.12) computes wrong numbers, for `jit(vmap(grad(loss)))` as well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.traits import (
    convolution_numbers,
    integer,
    ones_unless_given,
    padding,
    precision,
    reversed_dimensions,
)
from hlo_surgery.passes.raising.contractions import conv_dimensions, with_element_types
from hlo_surgery.passes.raising.raise_op import Raised


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


def convolution_by_patches(
    op: Operation, result: np.dtype | None = None, library: float = math.inf
) -> Raised | None:
    """The convolution as a function of its operands; None where its input features are grouped.

    It is of another element type, if `result` says so; from so many features as `library` on, of
    one example that no `vmap` lifts it is XLA's own.
    """
    if integer(op, "feature_group_count") != 1:
        return None
    numbers, groups = convolution_numbers(op), integer(op, "batch_group_count")
    batch, features = numbers.input_batch_dimension, numbers.kernel_output_feature_dimension
    places = [window.places for window in windows_of(op)]
    first = numbers.output_batch_dimension, numbers.output_feature_dimension
    order = [*numbers.output_spatial_dimensions, *first]

    def by_patches(accumulator: np.dtype, image: Array, window: Array) -> Array:
        def of_group(image: Array, window: Array) -> Array:
            factors = positions_of_convolution(op, image, window)
            along = (((0,), (0,)), ((), ()))
            return lax.dot_general(
                *factors, along, precision(op), preferred_element_type=accumulator
            )

        split = in_groups(image, batch, groups), in_groups(window, features, groups)
        made = jnp.moveaxis(jax.vmap(of_group, (batch, features))(*split), 0, 1)
        whole = made.reshape(*places, -1, made.shape[1] * made.shape[2])
        return whole.transpose([order.index(d) for d in range(whole.ndim)])

    def by_either(image: Array, window: Array, accumulator: np.dtype) -> Array:
        contract = partial(by_patches, accumulator)
        if window.shape[features] >= library and _suits_library(op):
            contract, lifted = custom_vmap(partial(_by_library, op, accumulator)), contract
            contract.def_vmap(partial(_lifted, lifted))
        return contract(image, window)

    return with_element_types(op, by_either, result or dtype_of(op.result))


def _suits_library(op: Operation) -> bool:
    """Whether it is of images, with windows of several places that go over all their elements."""
    windows = windows_of(op)
    dense = all(w.image_dilation == 1 for w in windows) and not reversed_dimensions(op)
    several = len(windows) == 2 and any(w.places > 1 for w in windows)
    return dense and several and integer(op, "batch_group_count") == 1


def _by_library(op: Operation, accumulator: np.dtype, image: Array, window: Array) -> Array:
    """The convolution with its operands as XLA's library has them, features last."""
    dims, windows = conv_dimensions(op), windows_of(op)
    (batch, features, *places), (out, own, *lengths), result = dims
    made = lax.conv_general_dilated(
        image.transpose(batch, *places, features),
        window.transpose(*lengths, own, out),
        [w.stride for w in windows],
        [w.padding for w in windows],
        rhs_dilation=[w.dilation for w in windows],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision(op),
        preferred_element_type=accumulator,
    )
    order = [result[0], *result[2:], result[1]]
    return made.transpose([order.index(d) for d in range(made.ndim)])


def _lifted(
    function: Callable[..., Array], _: int, batched: Sequence[bool], *operands: Array
) -> tuple[Array, bool]:
    return jax.vmap(function, [0 if each else None for each in batched])(*operands), True


def positions_of_convolution(op: Operation, image: Array, window: Array) -> tuple[Array, Array]:
    """An ungrouped convolution's factors, [positions, places * batch] and [positions, features]."""
    numbers = convolution_numbers(op)
    spatial, batch = numbers.kernel_spatial_dimensions, numbers.input_batch_dimension
    # Of one example where the window is over all of them.
    sizes = zip(windows_of(op), spatial, strict=True)
    windows = [replace(own, length=window.shape[d]) for own, d in sizes]
    patches = patches_under(image, windows, batch)
    summed = [numbers.input_feature_dimension, *numbers.input_spatial_dimensions]
    behind = [d + (len(windows) if d > batch else 0) for d in summed]
    second = lax.rev(window, reversed_dimensions(op))
    kernel = [numbers.kernel_input_feature_dimension, *spatial]
    return _by_position(patches, behind), _by_position(second, kernel)


def _by_position(x: Array, dims: Sequence[int]) -> Array:
    """[positions, elements], the positions along these dimensions."""
    count = math.prod(x.shape[d] for d in dims)
    return jnp.moveaxis(x, dims, range(len(dims))).reshape(count, -1)


def windows_of(op: Operation) -> list[Window]:
    """The window's way over each spatial dimension."""
    numbers, result = convolution_numbers(op), op.result
    image, kernel = numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions
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


def patches_under(image: Array, windows: Sequence[Window], batch: int) -> Array:
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


def in_groups(x: Array, dim: int, groups: int) -> Array:
    """A dimension as [groups, rest]."""
    return x.reshape(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])
