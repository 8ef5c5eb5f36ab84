"""Indices that are the example's own number: `x[arange(B), labels]` and the scatter that transposes it.

A gather or scatter along the example axis usually mixes examples. It does not where index b along that axis is b,
which is proved by evaluating the index column, an iota behind JAX's normalisation of negative indices.
"""

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery import mlir
from hlo_surgery.mlir import Operation, Value, stablehlo
from hlo_surgery.passes.constants import evaluate
from hlo_surgery.passes.lattice import Class, PerExample


def gathered_axis(op: Operation, classes: list[Class], size: int) -> PerExample | None:
    """The example axis of a gather's result, where each example gathers from its own slice."""
    numbers = cast(Any, stablehlo).GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(cast(Any, op.attributes["slice_sizes"]))
    axis = classes[0]
    if not isinstance(axis, PerExample) or sizes[axis.dim] != 1:
        return None
    columns = list(numbers.start_index_map)
    own = _own_column(op.operands[1], classes[1], columns, axis, numbers.index_vector_dim, size)
    if own is None:
        return None
    window = set(numbers.offset_dims)
    outside = [d for d in range(len(mlir.shape(op.results[0]))) if d not in window]
    return PerExample(outside[own.dim], own.before, own.after)


def scattered_axis(op: Operation, classes: list[Class], size: int) -> PerExample | None:
    """The example axis of a scatter's result, where each example's updates go to its own slice."""
    if len(op.results) != 1:
        return None
    numbers = cast(Any, stablehlo).ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    updates, columns = classes[2], list(numbers.scattered_dims_to_operand_dims)
    if not isinstance(updates, PerExample):
        return None
    window = set(numbers.update_window_dims)
    outside = [d for d in range(len(mlir.shape(op.operands[2]))) if d not in window]
    if updates.dim not in outside:
        return None
    along = PerExample(outside.index(updates.dim), updates.before, updates.after)
    for column, dim in enumerate(columns):
        whole = mlir.shape(op.operands[0])[dim] == size and dim in numbers.inserted_window_dims
        if whole and _counts_examples(op.operands[1], column, numbers.index_vector_dim, along, size):
            return PerExample(dim)
    return None


def _own_column(
    indices: Value, known: Class, columns: list[int], axis: PerExample, vector_dim: int, size: int
) -> PerExample | None:
    """Where the examples lie among the index's batch dimensions, if its column for `axis` numbers them."""
    if axis.dim not in columns or (axis.before, axis.after) != (1, 1):
        return None
    shape = mlir.shape(indices)
    batch = [length for d, length in enumerate(shape) if d != vector_dim]
    if isinstance(known, PerExample):
        shift = known.dim > vector_dim
        candidates = [PerExample(known.dim - shift, known.before, known.after)]
    else:
        candidates = [PerExample(d) for d, length in enumerate(batch) if length == size]
    column = columns.index(axis.dim)
    return next((c for c in candidates if _counts_examples(indices, column, vector_dim, c, size)), None)


def _counts_examples(indices: Value, column: int, vector_dim: int, along: PerExample, size: int) -> bool:
    """Whether entry b of this index column is b, for every b along the given batch dimension."""
    numbers = _column(indices, column, vector_dim)
    if numbers is None:
        return False
    length = numbers.shape[along.dim]
    wanted = (np.arange(length) // along.after) % size
    shape = [length if d == along.dim else 1 for d in range(numbers.ndim)]
    return bool((numbers == wanted.reshape(shape)).all())


def _column(indices: Value, column: int, vector_dim: int) -> npt.NDArray[Any] | None:
    """One column of an index, evaluated; only the piece of a concatenation that holds it needs to be constant."""
    rank = len(mlir.shape(indices))
    op = mlir.defining_operation(indices)
    if vector_dim < rank and op is not None and op.name == "stablehlo.concatenate":
        if int(cast(Any, op.attributes["dimension"])) != vector_dim:
            return None
        for piece in op.operands:
            length = mlir.shape(piece)[vector_dim]
            if column < length:
                return _column(piece, column, vector_dim)
            column -= length
    numbers = evaluate(indices)
    if numbers is None or vector_dim == rank:
        return numbers
    return numbers.take(column, vector_dim)
