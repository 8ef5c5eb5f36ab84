"""Positions over steps: what a loop over parts adds at each step belongs to that part's examples.

    while %i < B { %c = add %c, (dynamic_slice %weights, %i) }        %weights: Shared

As with a sum over positions, no example reaches the result, and yet it is no constant that all
share. A loop with as many steps as another has parts counts as one, since the backward pass of a
linear head touches no example.
"""

from typing import Any, cast

from hlo_surgery.passes.example_axes.counters import counter_values
from hlo_surgery.passes.example_axes.lattice import SHARED, Axes, Summed
from hlo_surgery.passes.example_axes.loop_steps import varies
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.linearity import is_linear
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line

POSITIONAL = "sums a value that holds something for each example's position, but no example"
POSITIONAL_HELP = "pass that value (a dropout mask, a weight for each example) as a batch argument"


def step_sums(axes: Axes, block: Block) -> dict[Value, Reason]:
    """Such sums in a block that is classified, by value, each with its reason."""
    found: dict[Value, Reason] = {}
    for op in mlir.nested_operations(cast(Any, block.owner).operation) if axes.part_loops else []:
        if op.name == "stablehlo.while":
            pairs = (
                (r, _carried_positions(axes, op, i))
                for i, r in enumerate(op.results)
                if axes.of(r) == SHARED
            )
            found |= {result: reason for result, reason in pairs if reason}
        elif (
            len(op.results) == 1
            and isinstance(axes.of(op.results[0]), Summed)
            and _adds_positions(axes, op)
        ):
            found[op.results[0]] = Reason(POSITIONAL, op.name, source_line(op), POSITIONAL_HELP)
    return found


def _carried_positions(axes: Axes, loop: Operation, number: int) -> Reason | None:
    """Why a Shared carry of a loop is no constant of the batch; None where it may be one."""
    body = loop.regions[1].blocks[0]
    carry = body.arguments[number]
    if not mlir.is_inexact(carry) or not _is_over_parts(axes, loop):
        return None
    pending = [mlir.operands(mlir.return_operation(body))[number]]
    while pending:
        value = pending.pop()
        op = mlir.defining_operation(value)
        if op is not None and op.name == "stablehlo.add" and op.block == body:
            pending += op.operands
        elif value != carry and varies(axes, loop, value):
            return Reason(
                POSITIONAL,
                loop.name if op is None else op.name,
                source_line(op or loop),
                POSITIONAL_HELP,
            )
    return None


def _adds_positions(axes: Axes, op: Operation) -> bool:
    """Whether what an op adds to a sum over the examples differs from part to part."""
    summed = frozenset(i for i, c in enumerate(axes.at(op)) if isinstance(c, Summed))
    added = [
        v for i, v in enumerate(op.operands) if i not in summed and is_linear(op, summed | {i})
    ]
    shared = [v for v in added if axes.of(v) == SHARED and mlir.is_inexact(v)]
    if not (shared and summed):
        return False
    loops = [loop for loop in mlir.enclosing_loops(op) if _is_over_parts(axes, loop)]
    return any(varies(axes, loop, v) for loop in loops for v in shared)


def _is_over_parts(axes: Axes, loop: Operation) -> bool:
    """Whether a loop takes the batch in parts, or may have as many steps as one that does and
    neither lies in the other.
    """
    if loop.results[0] in axes.part_loops:
        return True
    counters = counter_values(loop) if axes.part_loops else {}
    steps = {len(numbers) for numbers in counters.values()} if counters is not None else None
    alike = steps is None or not steps.isdisjoint(axes.part_loops.values())
    return alike and not any(op.results[0] in axes.part_loops for op in _around_and_inside(loop))


def _around_and_inside(loop: Operation) -> list[Operation]:
    inside = [op for op in mlir.nested_operations(loop) if op.name == "stablehlo.while"]
    return [*mlir.enclosing_loops(loop), *inside]
