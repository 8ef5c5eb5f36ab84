"""Positions over steps: what a loop over parts adds at each step belongs to that part's examples.

    while %i < B { %c = add %c, (dynamic_slice %weights, %i) }        %weights: nobody's

As with a sum over positions, no example reaches the result, and yet it is no constant that all
share. A loop with as many steps as another has parts counts as one, since the backward pass of a
linear head touches no example.
"""

from typing import Any, cast

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.linearity import is_linear
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at, source_line
from hlo_surgery.passes.owners.classes import (
    is_bare,
    is_sum,
)
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.step_constants import uneven_steps

POSITIONAL = "sums a value that holds something for each example's position, but no example"
POSITIONAL_HELP = "pass that value (a dropout mask, a weight for each example) as a batch argument"


def step_sums(owners: Owners, block: Block) -> dict[Value, Reason]:
    """Such sums in a block that is classified, by value, each with its reason."""
    found: dict[Value, Reason] = {}
    for op in mlir.nested_operations(cast(Any, block.owner).operation) if owners.part_loops else []:
        if op.name == "stablehlo.while":
            pairs = (
                (r, _carried_positions(owners, op, i))
                for i, r in enumerate(op.results)
                if is_bare(owners.of(r))
            )
            found |= {result: reason for result, reason in pairs if reason}
            found |= uneven_steps(owners, op) if _is_over_parts(owners, op) else {}
        elif (
            len(op.results) == 1
            and is_sum(owners.of(op.results[0]))
            and _adds_positions(owners, op)
        ):
            found[op.results[0]] = reason_at(op, POSITIONAL, POSITIONAL_HELP)
    return found


def _carried_positions(owners: Owners, loop: Operation, number: int) -> Reason | None:
    """Why a loop's carry that nobody owns is no constant of the batch; None where it may be one."""
    body = loop.regions[1].blocks[0]
    carry = body.arguments[number]
    if not mlir.is_inexact(carry) or not _is_over_parts(owners, loop):
        return None
    pending = [mlir.operands(mlir.return_operation(body))[number]]
    while pending:
        value = pending.pop()
        op = mlir.defining_operation(value)
        if op is not None and op.name == "stablehlo.add" and op.block == body:
            pending += op.operands
        elif value != carry and varies(owners.varying, loop, value):
            return Reason(
                POSITIONAL,
                loop.name if op is None else op.name,
                source_line(op or loop),
                POSITIONAL_HELP,
            )
    return None


def _adds_positions(owners: Owners, op: Operation) -> bool:
    """Whether what an op adds to a sum over the examples differs from part to part."""
    summed = frozenset(i for i, c in enumerate(owners.at(op)) if is_sum(c))
    added = [
        v for i, v in enumerate(op.operands) if i not in summed and is_linear(op, summed | {i})
    ]
    shared = [v for v in added if is_bare(owners.of(v)) and mlir.is_inexact(v)]
    if not (shared and summed):
        return False
    loops = [loop for loop in mlir.enclosing_loops(op) if _is_over_parts(owners, loop)]
    return any(varies(owners.varying, loop, v) for loop in loops for v in shared)


def _is_over_parts(owners: Owners, loop: Operation) -> bool:
    """Whether a loop takes the batch in parts, or may have as many steps as one that does and
    neither lies in the other.
    """
    if loop.results[0] in owners.part_loops:
        return True
    counters = counter_values(loop) if owners.part_loops else {}
    steps = {len(numbers) for numbers in counters.values()} if counters is not None else None
    alike = steps is None or not steps.isdisjoint(owners.part_loops.values())
    return alike and not any(op.results[0] in owners.part_loops for op in _around_and_inside(loop))


def _around_and_inside(loop: Operation) -> list[Operation]:
    inside = [op for op in mlir.nested_operations(loop) if op.name == "stablehlo.while"]
    return [*mlir.enclosing_loops(loop), *inside]
