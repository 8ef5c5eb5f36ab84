"""Vanishing: values that are zero at all elements, whatever the arguments are.

%r = while (%c = 0) { return (add %c, 0) }       %r is zero

A gradient of a parameter that a loss does not use is added up all the same.

Uniform: whether a value is the same at all places along a dimension, as far as its making shows.

broadcast_in_dim %m : [D] -> [B, D]       along the first dimension      =>  uniform
add %u, %v                                both uniform along it          =>  uniform
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.dataflow.ancestors import COPIES, PASSING, behind_barriers, is_splat, ties
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.mlir import Operation, Value, Values, closure
from hlo_surgery.passes.ir.traits import integers, is_linear, pads

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


def _made_of(value: Value) -> Values:
    """What a value is zero with; nothing where it is a constant, or made otherwise."""
    op = mlir.defining_operation(value)
    if op is None or op.name in PASSING:
        return ties(value)
    if op.name == "stablehlo.select":
        return [op.operands[1], op.operands[2]]
    if op.name in MOVED:
        return [op.operands[k] for k in MOVED[op.name]]
    if op.name in COPIES or is_linear(op, range(len(op.operands))):
        return mlir.operands(op)
    if op.name in SCALES:
        zero = op.name == "stablehlo.multiply" and is_splat(op.operands[1], 0)
        return [op.operands[1 if zero else 0]]
    return []


# A value, and a dimension of it.
Along = tuple[Value, int]
# Which operand is put at some of the places of the first one.
UPDATES = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": -1}


def is_uniform(value: Value, dim: int) -> bool:
    """Whether each place along a dimension holds the same; False where not shown."""
    shown = True

    def rests(along: Along) -> Sequence[Along]:
        nonlocal shown
        found = _uniform_if(*along) if shown else None
        shown = found is not None
        return found or ()

    closure([(value, dim)], rests)
    return shown


def _uniform_if(value: Value, dim: int) -> Sequence[Along] | None:
    """What must be uniform for a value to be so; None where it is not, or does not show it."""
    value = behind_barriers(value)
    op = mlir.defining_operation(value)
    if op is None or len(op.results) > 1:
        return None
    if op.name == "stablehlo.constant":
        numbers = elements(op)
        return [] if bool((numbers == numbers.take([0], dim)).all()) else None
    if op.name == "stablehlo.broadcast_in_dim":
        dims = integers(op, "broadcast_dimensions")
        source = dims.index(dim) if dim in dims else None
        is_new = source is None or mlir.shape(op.operands[0])[source] == 1
        return [] if source is None or is_new else [(op.operands[0], source)]
    if op.name == "stablehlo.slice":
        return [(op.operands[0], dim)]
    # Of sizes that are equal Shardy's rule does not say that a pad moves them.
    is_moved = op.name == "stablehlo.pad" and any(pads(op)[dim])
    return None if is_moved else _by_rule(op, dim)


def _by_rule(op: Operation, dim: int) -> Sequence[Along] | None:
    """What must be uniform along the factor that a dimension of the one result is."""
    rule, size = kernels.rule_of(op), mlir.shape(op.result)[dim]
    own = rule.results[0][dim] if rule else ()
    if rule is None or len(own) != 1 or own[0] in rule.blocked or rule.sizes[own[0]] != size:
        return None
    pairs = list(zip(op.operands, rule.operands, strict=True))
    if op.name in UPDATES and own not in pairs[UPDATES[op.name]][1]:
        return None
    rests = [
        (value, d)
        for value, factors in pairs
        for d, each in enumerate(factors)
        if each == own and mlir.shape(value)[d] == size
    ]
    return rests or None
