"""Held constants: what `hs.constant` marked, as a barrier with a word of it.

    composite "hlo_surgery.constant" %x    =>    optimization_barrier %x {held_constant}

All passes know a barrier, and the analysis asks whether it holds a constant. When all is done, its
operand is used in place of it.
"""

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.inlining import COMPOSITE
from hlo_surgery.passes.ir.mlir import Module, Operation, ir

NAME = "hlo_surgery.constant"
HELD = "held_constant"


def hold_constants(module: Module) -> None:
    """Put a barrier in place of every mark."""
    for op in mlir.all_operations(module):
        if op.name == COMPOSITE and mlir.text_attribute(op, "name") == NAME:
            mlir.rename(op, mlir.BARRIER, {HELD: ir.UnitAttr.get(mlir.context())})


def release_constants(module: Module) -> None:
    """Use what is marked itself."""
    for op in mlir.all_operations(module):
        if holds_constant(op):
            mlir.replace(op, mlir.operands(op))


def holds_constant(op: Operation) -> bool:
    """Whether the op marks what is to count as a constant of the batch."""
    return op.name == mlir.BARRIER and HELD in op.attributes
