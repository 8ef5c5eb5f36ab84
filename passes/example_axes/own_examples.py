"""Indices that are the example's own number: `x[arange(B), labels]` and its transposed scatter.

A gather or scatter along the example axis usually mixes examples. It does not where index b along
that axis is b, which is proved by evaluating the index column, an iota behind JAX's normalisation
of negative indices. Where the axis holds several rows of each example, as flattened tokens do,
index r is to be r for every row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.example_axes.lattice import Class, PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import evaluate
from hlo_surgery.passes.ir.mlir import Operation, Value, stablehlo


@dataclass(frozen=True)
class OwnNumbers:
    """Where the examples lie in each operand and in the result of such a gather or scatter."""

    operands: tuple[PerExample, ...]
    result: PerExample


def own_numbers(op: Operation, classes: Sequence[Class], size: int) -> OwnNumbers | None:
    """The example axes of a gather or scatter that keeps to each example's own slice; else None."""
    if op.name == "stablehlo.gather":
        return _gather(op, classes, size)
    return (
        _scatter(op, classes, size)
        if op.name == "stablehlo.scatter" and len(op.results) == 1
        else None
    )


def _gather(op: Operation, classes: Sequence[Class], size: int) -> OwnNumbers | None:
    numbers = cast(Any, stablehlo).GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = list(cast(Any, op.attributes["slice_sizes"]))
    dims = [d for d in numbers.start_index_map if sizes[d] == 1]
    columns = list(numbers.start_index_map)
    window = set(numbers.offset_dims)
    outside = [d for d in range(len(mlir.shape(op.results[0]))) if d not in window]
    found = _own_column(
        op, classes, dims, columns, numbers.index_vector_dim, size, _known(classes[1], numbers)
    )
    if found is None:
        return None
    own, along = found
    axes = (own, _in_indices(along, numbers.index_vector_dim))
    return OwnNumbers(axes, PerExample(outside[along.dim], along.before, along.after))


def _scatter(op: Operation, classes: Sequence[Class], size: int) -> OwnNumbers | None:
    numbers = cast(Any, stablehlo).ScatterDimensionNumbers(
        op.attributes["scatter_dimension_numbers"]
    )
    window = set(numbers.update_window_dims)
    outside = [d for d in range(len(mlir.shape(op.operands[2]))) if d not in window]
    updates, known = classes[2], _known(classes[1], numbers)
    if isinstance(updates, PerExample):
        if updates.dim not in outside:
            return None
        known = PerExample(outside.index(updates.dim), updates.before, updates.after)
    dims, columns = list(numbers.inserted_window_dims), list(numbers.scattered_dims_to_operand_dims)
    found = _own_column(op, classes, dims, columns, numbers.index_vector_dim, size, known)
    if found is None:
        return None
    own, along = found
    in_updates = PerExample(outside[along.dim], along.before, along.after)
    axes = (own, _in_indices(along, numbers.index_vector_dim), in_updates)
    return OwnNumbers(axes, own)


def _known(indices: Class, numbers: Any) -> PerExample | None:
    """Where the examples lie among the index's batch dimensions, if it carries them."""
    if not isinstance(indices, PerExample):
        return None
    shift = indices.dim > numbers.index_vector_dim
    return PerExample(indices.dim - shift, indices.before, indices.after)


def _in_indices(along: PerExample, vector_dim: int) -> PerExample:
    shift = along.dim >= vector_dim
    return PerExample(along.dim + shift, along.before, along.after)


def _own_column(
    op: Operation,
    classes: Sequence[Class],
    dims: Sequence[int],
    columns: Sequence[int],
    vector_dim: int,
    size: int,
    known: PerExample | None,
) -> tuple[PerExample, PerExample] | None:
    """The example axes of operand and index, if the index numbers examples or all their rows."""
    operand, indices = op.operands[0], op.operands[1]
    held = classes[0]
    batch = [length for d, length in enumerate(mlir.shape(indices)) if d != vector_dim]
    candidates = (
        [known] if known else [PerExample(d) for d, length in enumerate(batch) if length == size]
    )
    for dim in (d for d in dims if d in columns):
        for along in candidates:
            length = mlir.shape(operand)[dim]
            rows = PerExample(dim, along.before, along.after)
            for own in (PerExample(dim), rows):
                fits = own.before * size * own.after == length and (
                    held == own or not isinstance(held, PerExample)
                )
                if fits and _counts(indices, columns.index(dim), vector_dim, along, own, size):
                    return own, along
    return None


def _counts(
    indices: Value, column: int, vector_dim: int, along: PerExample, own: PerExample, size: int
) -> bool:
    """Whether this index column counts, along the batch dimension, the examples or their rows."""
    numbers = _column(indices, column, vector_dim)
    if numbers is None:
        return False
    length = numbers.shape[along.dim]
    rows = np.arange(length)
    wanted = (rows // along.after) % size if own.is_whole else rows
    shape = [length if d == along.dim else 1 for d in range(numbers.ndim)]
    return bool((numbers == wanted.reshape(shape)).all())


def _column(indices: Value, column: int, vector_dim: int) -> npt.NDArray[Any] | None:
    """One column of an index, evaluated; only its piece of a concatenation need be constant."""
    rank = len(mlir.shape(indices))
    op = mlir.defining_operation(indices)
    while vector_dim < rank and op is not None and op.name == "stablehlo.concatenate":
        if int(cast(Any, op.attributes["dimension"])) != vector_dim:
            return None
        indices, column = _piece(op, column, vector_dim)
        op = mlir.defining_operation(indices)
    numbers = evaluate(indices)
    if numbers is None or vector_dim == rank:
        return numbers
    return numbers.take(column, vector_dim)


def _piece(op: Operation, place: int, dim: int) -> tuple[Value, int]:
    """A concatenation's operand that holds a place along its dimension, and the place there."""
    for piece in op.operands:
        length = mlir.shape(piece)[dim]
        if place < length:
            return piece, place
        place -= length
    raise IndexError(place)
