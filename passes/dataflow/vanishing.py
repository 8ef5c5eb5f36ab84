"""Vanishing: values that are zero at all elements, whatever the arguments are.

%r = while (%c = 0) { return (add %c, 0) }       %r is zero

A gradient of a parameter that a loss does not use is added up all the same.
"""

from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import COPIES, is_splat
from hlo_surgery.passes.ir.linearity import is_linear
from hlo_surgery.passes.ir.mlir import Value

SCALES = ("stablehlo.multiply", "stablehlo.divide")
# Which operands are moved, the others being places.
MOVED = {
    "stablehlo.dynamic_slice": (0,),
    "stablehlo.dynamic_update_slice": (0, 1),
    "stablehlo.gather": (0,),
}


def vanishes(value: Value) -> bool:
    """Whether all elements are zero, or times or over something: zero, or NaN where that is.

    By induction over the steps of loops: all that goes into it is.
    """
    return all(_made_of(v) or is_splat(v, 0) for v in closure([value], _made_of))


def _made_of(value: Value) -> list[Value]:
    """What a value is zero with; nothing where it is a constant, or made otherwise."""
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW or op.name == mlir.BARRIER:
        return ties(value)
    if op.name == "stablehlo.select":
        return [op.operands[1], op.operands[2]]
    if op.name in MOVED:
        return [op.operands[k] for k in MOVED[op.name]]
    if op.name in COPIES or is_linear(op, frozenset(range(len(op.operands)))):
        return mlir.operands(op)
    if op.name in SCALES:
        zero = op.name == "stablehlo.multiply" and is_splat(op.operands[1], 0)
        return [op.operands[1 if zero else 0]]
    return []
