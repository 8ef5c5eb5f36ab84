"""Chunked slices: given loops that cut an array into equal chunks, a dimension for the chunks.

    dynamic_slice %x[c * i], sizes = [c] : [n]
        =>  dynamic_slice (reshape %x : [n/c, c])[i], sizes = [1, c]

So microbatches that are cut out of a batch in place are parts, as those of a batch that was
reshaped. Which chunk is taken is evaluated for all steps of the loop: each must be taken once.
"""

from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.dataflow.numbers import Numbers, is_permutation, values_over
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, stablehlo


def split_chunks(module: Module) -> None:
    """Rewrite every such slice, and every write of a chunk in its place, in the module in place."""
    for op in mlir.all_operations(module):
        if (
            op.name == "stablehlo.dynamic_slice"
            and (dim := _chunked(op, op.results[0], 1)) is not None
        ):
            _split_slice(op, dim)
        elif (
            op.name == "stablehlo.dynamic_update_slice"
            and (dim := _chunked(op, op.operands[1], 2)) is not None
        ):
            _split_write(op, dim)


def _chunked(op: Operation, chunk: Value, first: int) -> int | None:
    """The one dimension along which a loop goes over chunks of the first operand; index operands
    start at `first`.
    """
    whole, part = mlir.shape(op.operands[0]), mlir.shape(chunk)
    cut = [d for d in range(len(whole)) if whole[d] != part[d]]
    if len(cut) != 1 or part[cut[0]] <= 1 or whole[cut[0]] % part[cut[0]]:
        return None
    size = part[cut[0]]
    for loop in mlir.enclosing_loops(op):
        counters = counter_values(loop)
        starts = values_over(op.operands[first + cut[0]], counters) if counters else None
        if starts is not None and _cuts(starts, size, whole[cut[0]]):
            return cut[0]
    return None


def _cuts(starts: Numbers, size: int, whole: int) -> bool:
    """Whether chunks that start there are all the chunks, each once. A chunk's size need not be a
    number of the starts' own type.
    """
    chunks, left = np.divmod(starts.astype(np.int64), size)
    return not left.any() and is_permutation(chunks, whole // size)


def _split_slice(op: Operation, dim: int) -> None:
    whole, part = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    with mlir.context(), op.location, ir.InsertionPoint(op):
        rows = _reshape(op.operands[0], _parted(whole, part, dim))
        starts = _starts(op, 1, dim, part[dim])
        sizes = ir.DenseI64ArrayAttr.get([*part[:dim], 1, *part[dim:]])
        taken = _reshape(stablehlo.dynamic_slice(rows, starts, sizes), part)
    op.results[0].replace_all_uses_with(taken)
    op.erase()


def _split_write(op: Operation, dim: int) -> None:
    whole, part = mlir.shape(op.operands[0]), mlir.shape(op.operands[1])
    with mlir.context(), op.location, ir.InsertionPoint(op):
        rows = _reshape(op.operands[0], _parted(whole, part, dim))
        chunk = _reshape(op.operands[1], (*part[:dim], 1, *part[dim:]))
        written = stablehlo.dynamic_update_slice(rows, chunk, _starts(op, 2, dim, part[dim]))
        joined = _reshape(written, whole)
    op.results[0].replace_all_uses_with(joined)
    op.erase()


def _parted(whole: tuple[int, ...], part: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*whole[:dim], whole[dim] // part[dim], part[dim], *whole[dim + 1 :])


def _starts(op: Operation, first: int, dim: int, size: int) -> list[Value]:
    """The indices, that of the chunk in place of its first row's, and a zero behind it."""
    indices = list(op.operands)[first:]
    kind = dtype_of(indices[dim])
    constants = [
        stablehlo.constant(cast(Any, ir.DenseElementsAttr).get(np.asarray(n, kind)))
        for n in (size, 0)
    ]
    chunk = cast(Any, stablehlo).divide(indices[dim], constants[0])
    return [*indices[:dim], chunk, constants[1], *indices[dim + 1 :]]


def _reshape(value: Value, shape: tuple[int, ...]) -> Value:
    kind = ir.RankedTensorType.get(list(shape), cast(ir.Type, mlir.element_type(value)))
    return cast(Any, stablehlo).reshape(kind, value)
