"""Linked values: those that a loop, branch or barrier passes on as one state.

%r = while (%c = %initial) { ... return %next }       %initial, %c, %next, %r are one state
"""

from typing import Any

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import BARRIER, Operation, Value


def linked(value: Value) -> list[Value]:
    """Values that are passed on as this one: initial, carried, returned, resulting."""
    return [v for use in value.uses for v in _through(use)] + ties(value)


def _through(use: Any) -> list[Value]:
    op, number = use.owner.operation, int(use.operand_number)
    if op.name in ("stablehlo.while", BARRIER):
        return _ties(op, number)
    if op.name == "stablehlo.return" and op.parent.name in mlir.CONTROL_FLOW:
        return (
            _ties(op.parent.operation, number) if number < len(op.parent.operation.results) else []
        )
    return []


def ties(value: Value) -> list[Value]:
    """For what a loop, branch or barrier results in, or a loop carries: all of the same state."""
    owner: Any = value.owner
    op = mlir.defining_operation(value)
    if op is not None:
        passes_on = op.name in mlir.CONTROL_FLOW or op.name == BARRIER
        return _ties(op, mlir.results(op).index(value)) if passes_on else []
    loop = owner.owner.operation
    return _ties(loop, list(owner.arguments).index(value)) if loop.name == "stablehlo.while" else []


def _ties(op: Operation, number: int) -> list[Value]:
    if op.name == BARRIER:
        return [op.operands[number], op.results[number]]
    returned = [mlir.operands(mlir.return_operation(r.blocks[0])) for r in op.regions]
    if op.name == "stablehlo.while":
        body = op.regions[1].blocks[0]
        return [
            op.operands[number],
            op.results[number],
            body.arguments[number],
            returned[1][number],
        ]
    return [op.results[number], *(values[number] for values in returned)]


def behind_barriers(value: Value) -> Value:
    """The value itself, behind optimization barriers, which pass on each operand as it is."""
    op = mlir.defining_operation(value)
    while op is not None and op.name == BARRIER:
        value = op.operands[mlir.results(op).index(value)]
        op = mlir.defining_operation(value)
    return value
