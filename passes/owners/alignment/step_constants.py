"""Constants of steps: what a loop over parts adds at each step beside that step's examples.

    while %i < B { %c = add (multiply %c, %decay), (add %x_i, %p) }        %p: nobody's

If the sum so far is only added to, each step brings %p once, so that it makes no difference whether
that is its examples' or nobody's. If it is scaled, chosen or handed on to another sum, steps bring
it in different parts, and the two readings differ.
"""

from functools import partial

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import APART_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import next_terms
from hlo_surgery.passes.owners.alignment.even_shares import ADD
from hlo_surgery.passes.owners.classes import Owners, is_shared, is_sum

UNEVEN_STEPS = (
    "a constant is added at each step beside that step's examples, and the sum so far is not only "
    "added to, so that it is not shown that each example gets its share"
)


def uneven_steps(owners: Owners, loop: Operation) -> dict[Value, Reason]:
    """The sums that a loop over parts returns of which steps may bring constants unevenly."""
    body = loop.regions[1].blocks[0]
    returned = dict(zip(body.arguments, mlir.operands(mlir.return_operation(body)), strict=True))
    sums = {carry: total for carry, total in returned.items() if is_sum(owners.of(carry))}
    return {
        result: reason_at(loop, UNEVEN_STEPS, APART_HELP)
        for result, carry in zip(loop.results, body.arguments, strict=True)
        if carry in sums and not _only_grows(carry, sums) and _has_constant(owners, carry, sums)
    }


def _only_grows(carry: Value, sums: dict[Value, Value]) -> bool:
    """Whether a step does nothing to a sum so far but add what rests on no sum of earlier steps."""
    value = carry
    while value != sums[carry]:
        users = mlir.users(value)
        if len(users) != 1 or users[0].name != ADD:
            return False
        others = [v for v in users[0].operands if v != value]
        if len(others) != 1 or not closure(others, _sources).isdisjoint(sums):
            return False
        value = users[0].results[0]
    return True


def _sources(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    return [] if op is None else [*op.operands, *(mlir.captured(op) if len(op.regions) else [])]


def _has_constant(owners: Owners, carry: Value, sums: dict[Value, Value]) -> bool:
    """Whether steps add what nobody owns to this sum, or to one that is added to it."""
    terms = closure([sums[carry]], partial(_terms_of_steps, owners, sums))
    return any(is_shared(owners.of(v)) and not vanishes(v) for v in terms)


def _terms_of_steps(owners: Owners, sums: dict[Value, Value], value: Value) -> list[Value]:
    """What is added up in a value, without what the loop began with."""
    return [sums[value]] if value in sums else next_terms(owners, value)
