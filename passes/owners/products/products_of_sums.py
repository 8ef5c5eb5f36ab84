"""Products of sums over the batch: which factor is a constant is not known, nor whose they are.

    %p = multiply %s, %t
        sums of data, or both of trained values     =>  %p: a constant, undivided
    %q = multiply %p, %u
        %u: one more sum                            =>  undivided too, and no sum of %u's terms
    %r = multiply %p, %x
        %x: Owned                                   =>  %r: Owned, scaled by a constant
    %n = rsqrt %p
        no product any more                         =>  a constant

(a b) c would be given to the examples as c is, and a (b c) as a is, though they are one number.
What is not linear in the product is a constant in any reading, and what the examples meet row by
row is theirs in any.
"""

from collections.abc import Collection

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.linearity import is_linear
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import reason_at

FACTOR = "a product of sums over the batch is used as a constant"
UNDIVIDED = "sums over the batch are multiplied, and which of them is the constant is not known"


def product_of(op: Operation, summed: Collection[int]) -> Reason | None:
    """Why the constant of several sums is undivided, if an op is linear in each alone, or
    multiplies elements.
    """
    by_operand = len(summed) > 1 and all(is_linear(op, frozenset([i])) for i in summed)
    if by_operand or multiplies_elements(op):
        return reason_at(op, UNDIVIDED)
    return None


def multiplies_elements(op: Operation) -> bool:
    """Whether it is a reduce, a window or a scatter whose body has a product."""
    if op.name in mlir.CONTROL_FLOW:
        return False
    return any(inner.name == "stablehlo.multiply" for inner in mlir.nested_operations(op))
