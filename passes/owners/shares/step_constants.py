"""Constants of steps: what a loop over parts adds at each step beside that step's examples.

    while %i < B { %c = add (multiply %c, %decay), (add %x_i, %p) }        %p: nobody's

If each step brings as much of %p to the sum in the end, it makes no difference whether that is its
examples' or nobody's. If the sum is scaled, chosen or handed on to another one, steps bring it in
different parts, and the two readings differ.
"""

from functools import partial

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import APART_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import next_terms
from hlo_surgery.passes.owners.classes import (
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.step_weights import step_forms

UNEVEN_STEPS = (
    "a constant is added at each step beside that step's examples, and it is not shown that all "
    "steps bring as much of it to the sum in the end, so that each example gets its share"
)


def uneven_steps(owners: Owners, loop: Operation) -> dict[Value, Reason]:
    """The sums that a loop over parts returns of which steps may bring constants unevenly."""
    body = loop.regions[1].blocks[0]
    returned = zip(body.arguments, mlir.operands(mlir.return_operation(body)), strict=True)
    sums = {carry: total for carry, total in returned if is_sum(owners.of(carry))}
    asked = any(_has_constant(owners, carry, sums) for carry in sums)
    forms = step_forms(owners, loop) if asked else []
    return {
        result: reason_at(loop, UNEVEN_STEPS, APART_HELP)
        for result, carry, form in zip(loop.results, body.arguments, forms, strict=asked)
        if form is None and carry in sums and _has_constant(owners, carry, sums)
    }


def _has_constant(owners: Owners, carry: Value, sums: dict[Value, Value]) -> bool:
    """Whether steps add what nobody owns to this sum, or to one that is added to it."""
    terms = closure([sums[carry]], partial(_terms_of_steps, owners, sums))
    return any(is_shared(owners.of(v)) and not vanishes(v) for v in terms)


def _terms_of_steps(owners: Owners, sums: dict[Value, Value], value: Value) -> list[Value]:
    """What is added up in a value, without what the loop began with."""
    return [sums[value]] if value in sums else next_terms(owners, value)
