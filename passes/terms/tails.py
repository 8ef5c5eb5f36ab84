"""Tails: what one op behind a site does to the elements of a gradient.

%t = transpose %g ; %s = multiply %t, %scale        each element once, times a Shared one
%p = pad %t, %zero                                  each element once, beside zeros
"""

import math

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.linearity import added_results
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import Kind, ops_of
from hlo_surgery.passes.raising.raise_op import raise_op

MOVES, PASSED = ops_of(Kind.MOVES), ops_of(Kind.PASSES)
SCALES = frozenset(["stablehlo.multiply", "stablehlo.divide", "stablehlo.negate"])


def is_monomial(op: Operation) -> bool:
    """Whether each element of the result is one element of the operand, times a Shared one."""
    if op.name == "stablehlo.pad":
        return is_splat(op.operands[1], 0)
    if op.name == "stablehlo.add":
        return any(is_splat(v, 0) for v in op.operands)
    if op.name == "stablehlo.convert" and mlir.is_complex(op.operands[0]) != mlir.is_complex(
        op.results[0]
    ):
        return False
    if op.name in MOVES:
        return raise_op(op) is not None
    return op.name in PASSED | SCALES or drops_unit_dimensions(op)


def drops_unit_dimensions(op: Operation) -> bool:
    """Whether a sum is over sizes of 1 only, as in a transposed broadcast, and so a reshape."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1 or not all(added_results(op)):
        return False
    shape = mlir.shape(op.operands[0])
    return all(shape[d] == 1 for d in integers(op, "dimensions")) and is_splat(op.operands[1], 0)


def keeps_elements(op: Operation, operand: Value) -> bool:
    """Whether an op that moves elements has each of them once in its result, beside zeros."""
    sizes = [math.prod(mlir.shape(v)) for v in (operand, op.results[0])]
    if op.name != "stablehlo.pad":
        return sizes[0] == sizes[1]
    return all(
        p >= 0 for name in ("edge_padding_low", "edge_padding_high") for p in integers(op, name)
    )
