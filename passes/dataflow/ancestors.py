"""Ancestors: given values, all values that they are made of, inside loops and branches as well.

%m = reduce %x ; %y = tanh %x ; %g = dot_general %y, %x       behind %g: %g, %y, %x, and not %m
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Value


def ancestors(values: Sequence[Value]) -> set[Value]:
    """The values themselves and all behind them; of a loop or branch, all that it computes from."""
    return closure(values, behind)


def behind(value: Value) -> list[Value]:
    """What a value is made of, one step back."""
    op = mlir.defining_operation(value)
    if op is None:
        return ties(value)
    if op.name not in mlir.CONTROL_FLOW:
        return [*op.operands, *mlir.captured(op)]
    returned = (mlir.operands(mlir.return_operation(region.blocks[0])) for region in op.regions)
    return [*op.operands, *(v for values in returned for v in values)]
