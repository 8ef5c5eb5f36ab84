"""Products of sums over the batch: which factor is a constant is not known, nor whose they are.

    %p = multiply %s, %t
        sums of data, or both of trained values     =>  %p: a constant, undivided
    %q = multiply %p, %u
        %u: one more sum                            =>  undivided too, and no sum of %u's terms
    %r = multiply %p, %x
        %x: PerExample                              =>  %r: PerExample, scaled by a constant
    %n = rsqrt %p
        no product any more                         =>  a constant

(a b) c would be given to the examples as c is, and a (b c) as a is, though they are one number.
What is not linear in the product is a constant in any reading, and what the examples meet row by
row is theirs in any.
"""

from collections.abc import Sequence
from dataclasses import replace

from hlo_surgery.passes.example_axes.alignment.batch_constants import (
    UNDIVIDED,
    is_undivided,
    shared,
)
from hlo_surgery.passes.example_axes.lattice import Axes, Class, Shared
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.linearity import is_linear
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import source_line

FACTOR = "a product of sums over the batch is used as a constant"


def multiplied(op: Operation, summed: frozenset[int]) -> Shared | None:
    """The constant of several sums if an op is linear in each alone, or multiplies elements."""
    by_operand = len(summed) > 1 and all(is_linear(op, frozenset([i])) for i in summed)
    return (
        Shared(Reason(UNDIVIDED, op.name, source_line(op)))
        if by_operand or _multiplies_elements(op)
        else None
    )


def _multiplies_elements(op: Operation) -> bool:
    """Whether it is a reduce, a window or a scatter whose body has a product."""
    if op.name in mlir.CONTROL_FLOW:
        return False
    return any(inner.name == "stablehlo.multiply" for inner in mlir.nested_operations(op))


def scaling_product(
    axes: Axes, op: Operation, classes: Sequence[Class], summed: frozenset[int]
) -> Shared | None:
    """The product that scales a sum, where the sum might as well scale a factor of the product.

    Of a sum that parameters reach and a product of data, the product is the constant.
    """
    trained = any(op.operands[i] in axes.trained for i in summed)
    for i, known in enumerate(classes):
        scales = (
            is_undivided(known)
            and is_linear(op, frozenset([i]))
            and not is_linear(op, summed | {i})
        )
        if scales and (op.operands[i] in axes.trained or not trained):
            assert isinstance(known, Shared)
            return known
    return None


def constant(op: Operation, classes: Sequence[Class]) -> Shared:
    """The class of an op on Shared values: undivided where linear in what is, or multiplying it."""
    products = [(i, c) for i, c in enumerate(classes) if is_undivided(c)]
    kept = [c for i, c in products if is_linear(op, frozenset([i])) or _multiplies_elements(op)]
    return shared(kept or [_settled(c) for c in classes])


def _settled(known: Class) -> Class:
    """A constant as one that is no product of sums."""
    match known:
        case Shared(Reason() as data) if is_undivided(known):
            return Shared(replace(data, why=FACTOR))
        case _:
            return known
