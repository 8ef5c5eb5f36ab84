"""Rows of matrices: whose rows lie along an axis, also behind what linear algebra makes of them.

add %m, %w            =>  those of both, along the same dimension
cholesky %m [N, N]    =>  those of %m along either dimension
solve %m x = %b       =>  of x those of %m and %b; of several x, beside each other, those of %b
gather %m at (i, i)   =>  those of %m, one after the other, as of its diagonal
case %i: return %m    =>  those of %m
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.dataflow.uniform import Along, sources
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import gather_numbers, scatter_numbers
from hlo_surgery.passes.ir.constants import evaluate
from hlo_surgery.passes.ir.linearity import SOLVE_CALLS, TARGET, is_batched_call
from hlo_surgery.passes.ir.mlir import Operation, Value, ir

FACTORING = ("stablehlo.cholesky", "stablehlo.triangular_solve")


def rows_from(value: Value, axis: PerExample, size: int) -> list[Along]:
    """What has the rows that a value has along an axis; nothing where its op does not show it."""
    if states := ties(value):
        return [(v, axis, size) for v in states]
    op = mlir.defining_operation(value)
    if op is None:
        return []
    shown = [(v, own, size) for v, own in sources(op, axis, size) or [] if own]
    if axis.is_whole and op.name == "stablehlo.gather":
        return shown + _taken_in_order(op, axis.dim)
    if axis.is_whole and (op.name in FACTORING or is_batched_call(op)):
        return _of_matrices(op, axis.dim, size)
    return shown


def _of_matrices(op: Operation, dim: int, size: int) -> list[Along]:
    """The dimensions of matrices that lie along one of what is made of them: of a batch that of the
    batch, and of a solution's vectors the matrix's, but of their number the right-hand sides'.
    """
    matrix, *others = map(_dimensions, op.operands)
    batch = len(matrix) - 2
    if dim < batch:
        return [each[dim] for each in (matrix, *others) if dim < len(each)]
    own = [each for each in matrix[batch:] if each[-1] == size]
    if not _is_solve(op):
        return own
    return [others[0][dim], *(own if dim == _across(op, batch) else [])]


def _is_solve(op: Operation) -> bool:
    is_call = is_batched_call(op) and mlir.text_attribute(op, TARGET) in SOLVE_CALLS
    return op.name == "stablehlo.triangular_solve" or is_call


def _across(solve: Operation, batch: int) -> int | None:
    """The dimension of a solution along which the matrix lies: columns where it stands before them,
    rows where behind; None where the op does not tell.
    """
    if solve.name == "stablehlo.triangular_solve":
        return batch + (not ir.BoolAttr(solve.attributes["left_side"]).value)
    told = cast(Any, mlir.attributes(solve).get("mhlo.backend_config"))
    if told is None or "side" not in told:
        return None
    return batch + (ir.IntegerAttr(told["side"]).value != ord("L"))


def _dimensions(value: Value) -> list[Along]:
    return [(value, PerExample(dim), size) for dim, size in enumerate(mlir.shape(value))]


def _taken_in_order(gather: Operation, dim: int) -> list[Along]:
    """The dimensions of which a gather takes each place once, one after the other, along this."""
    numbers = gather_numbers(gather)
    operand, indices = gather.operands
    if dim in numbers.offset_dims:
        return []
    taken = _dimensions(operand)
    dims = _in_order(
        indices, numbers.index_vector_dim, numbers.start_index_map, mlir.shape(operand)
    )
    return [taken[d] for d in dims]


def is_put_in_order(scatter: Operation) -> bool:
    """Whether a scatter puts one row after the other, each at the place of its number."""
    numbers = scatter_numbers(scatter)
    vector_dim, columns = numbers.index_vector_dim, numbers.scattered_dims_to_operand_dims
    operand, indices = scatter.operands[0], scatter.operands[-2]
    return bool(_in_order(indices, vector_dim, columns, mlir.shape(operand)))


def _in_order(
    indices: Value, vector_dim: int, columns: Sequence[int], shape: Sequence[int]
) -> list[int]:
    """The dimensions whose indices are 0, 1, ..., as many as there are places."""
    is_list = len(mlir.shape(indices)) == 1 + (vector_dim < len(mlir.shape(indices)))
    places = evaluate(indices) if is_list else None
    if places is None:
        return []
    vectors = np.moveaxis(places, vector_dim, -1) if places.ndim > 1 else places[:, None]
    pairs = zip(columns, vectors.T, strict=True)
    return [d for d, column in pairs if np.array_equal(column, np.arange(shape[d]))]
