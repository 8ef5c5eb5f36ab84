"""Raising rules for the ops with computed indices: gather, scatter, dynamic slices.

JAX wants a gather's or scatter's index vectors along the last dimension of the indices; StableHLO
lets them lie along any dimension, or, past the last one, be single numbers.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.ir.constants import Arrays, dtype_of, has_numbers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.traits import (
    added_results,
    flag,
    gather_numbers,
    integers,
    overwrites,
    scatter_numbers,
)
from hlo_surgery.passes.raising.raise_op import Raised, raises, single


@raises("stablehlo.gather")
def gather(op: Operation) -> Raised:
    """Gather slices; a start index out of bounds is clamped to where the slice fits."""
    numbers = gather_numbers(op)
    index_vector_dim = numbers.index_vector_dim
    take = partial(
        lax.gather,
        dimension_numbers=gather_dimension_numbers(numbers),
        slice_sizes=integers(op, "slice_sizes"),
        indices_are_sorted=flag(op, "indices_are_sorted"),
        mode=lax.GatherScatterMode.CLIP,
    )

    def gathered(operand: Array, indices: Array) -> Array:
        return take(operand, index_vectors_last(indices, index_vector_dim))

    return single(gathered)


@raises("stablehlo.scatter")
def scatter(op: Operation, result: np.dtype | None = None) -> Raised | None:
    """Add updates to parts of the operands, or write them; what is out of bounds is dropped.

    In the element types of the op's results, or in `result`.
    """
    if all(added_results(op)) and has_numbers(op):
        update_operand = lax.scatter_add
    elif overwrites(op):
        update_operand = lax.scatter
    else:
        return None
    numbers = scatter_numbers(op)
    index_vector_dim = numbers.index_vector_dim
    dtypes = [result or dtype_of(made) for made in op.results]
    update = partial(
        update_operand,
        dimension_numbers=scatter_dimension_numbers(numbers),
        indices_are_sorted=flag(op, "indices_are_sorted"),
        unique_indices=flag(op, "unique_indices"),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )

    def scattered(*operands: Array) -> Arrays:
        count = len(dtypes)
        indices = index_vectors_last(operands[count], index_vector_dim)
        each = zip(operands[:count], operands[count + 1 :], dtypes, strict=True)
        return tuple(update(x.astype(own), indices, new.astype(own)) for x, new, own in each)

    return scattered


@raises("stablehlo.dynamic_slice")
def dynamic_slice(op: Operation) -> Raised:
    """A slice of fixed size, its start clamped to where the slice fits."""
    sizes = integers(op, "slice_sizes")

    def sliced(operand: Array, *starts: Array) -> Array:
        return lax.dynamic_slice(operand, starts, sizes, allow_negative_indices=False)

    return single(sliced)


@raises("stablehlo.dynamic_update_slice")
def dynamic_update_slice(_: Operation) -> Raised:
    """Write `update` over a slice of the operand, the start clamped to where it fits."""

    def updated(operand: Array, update: Array, *starts: Array) -> Array:
        return lax.dynamic_update_slice(operand, update, starts, allow_negative_indices=False)

    return single(updated)


def index_vectors_last(indices: Array, index_vector_dim: int) -> Array:
    """Indices with the numbers of each place along the last dimension."""
    if index_vector_dim == indices.ndim:
        return lax.expand_dims(indices, (index_vector_dim,))
    return jnp.moveaxis(indices, index_vector_dim, -1)


def _before_last(dims: Sequence[int], index_vector_dim: int) -> tuple[int, ...]:
    """Dimensions of the indices, counted once the index vectors are last."""
    return tuple(dim - (dim > index_vector_dim) for dim in dims)


def gather_dimension_numbers(numbers: Any) -> lax.GatherDimensionNumbers:
    """A gather's dimensions as JAX has them, index vectors being last."""
    return lax.GatherDimensionNumbers(
        offset_dims=tuple(numbers.offset_dims),
        collapsed_slice_dims=tuple(numbers.collapsed_slice_dims),
        start_index_map=tuple(numbers.start_index_map),
        operand_batching_dims=tuple(numbers.operand_batching_dims),
        start_indices_batching_dims=_before_last(
            numbers.start_indices_batching_dims, numbers.index_vector_dim
        ),
    )


def scatter_dimension_numbers(numbers: Any) -> lax.ScatterDimensionNumbers:
    """A scatter's dimensions as JAX has them, index vectors being last."""
    return lax.ScatterDimensionNumbers(
        update_window_dims=tuple(numbers.update_window_dims),
        inserted_window_dims=tuple(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(numbers.scattered_dims_to_operand_dims),
        operand_batching_dims=tuple(numbers.input_batching_dims),
        scatter_indices_batching_dims=_before_last(
            numbers.scatter_indices_batching_dims, numbers.index_vector_dim
        ),
    )
