"""Reached: which arguments of a block act on each of its values: op by op, operands on results."""

from functools import reduce
from operator import or_

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Value


def sources(block: Block) -> dict[Value, int]:
    """For each value a number whose bit i says whether it rests on argument i, or may."""
    found: dict[Value, int] = {argument: 1 << i for i, argument in enumerate(block.arguments)}
    for op in mlir.operations(block):
        used = reduce(or_, (found.get(v, 0) for v in [*mlir.operands(op), *mlir.captured(op)]), 0)
        found.update(dict.fromkeys(mlir.results(op), used))
    return found
