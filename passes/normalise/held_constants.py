"""Held constants: what `hs.constant` marked, as a barrier with a word of it.

    composite "hlo_surgery.constant" %x    =>    optimization_barrier %x {held_constant}

All passes know a barrier, and the analysis asks whether it holds a constant. When all is done, its
operand is used in place of it.
"""

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, ir

NAME = "hlo_surgery.constant"
HELD = "held_constant"


def hold_constants(module: Module) -> None:
    """Put a barrier in place of every mark."""
    for op in mlir.all_operations(module):
        if op.name == "stablehlo.composite" and mlir.text_attribute(op, "name") == NAME:
            with mlir.context(), op.location, ir.InsertionPoint(op):
                made = ir.Operation.create(
                    mlir.BARRIER,
                    results=[r.type for r in op.results],
                    operands=list(op.operands),
                    attributes={HELD: ir.UnitAttr.get()},
                )
            _replace(op, mlir.results(made))


def release_constants(module: Module) -> None:
    """Use what is marked itself."""
    for op in mlir.all_operations(module):
        if holds_constant(op):
            _replace(op, mlir.operands(op))


def holds_constant(op: Operation) -> bool:
    """Whether the op marks what is to count as a constant of the batch."""
    return op.name == mlir.BARRIER and HELD in op.attributes


def _replace(op: Operation, values: list[mlir.Value]) -> None:
    for result, value in zip(mlir.results(op), values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
