"""Loop sums: given sums of one block, the loop in it that adds them up, and what its steps add.

    %r = while (%c = %zero) { add %c, %u } ; %g = multiply %r, %scale       =>  %u, multiply

A loop in each step may add to the sum in its place, which is handed on to it:

    %r = while (%c = %zero) { %s = while (%d = %c) { add %d, %u } }         =>  %s, and of it %u
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.loops.added_values import added_values
from hlo_surgery.passes.terms.axes import Axes


@dataclass(frozen=True)
class LoopSums:
    """How sums of a block are made of what a loop in it adds up.

    `step`: the number of the step, of `trips`, in the body. `added`: what a step adds, by result of
    the loop; `handed_on`: those of it that a loop in the step results in, which goes on from the
    sum, and whose own steps' alone it stands for. `tail`: the ops from the results to the sums of
    the block, in order. `constants`: results that are taken as constants, such as a sum of weights,
    and `held` the ops behind the loop that make constants for the tail.
    """

    loop: Operation
    step: Value
    trips: int
    added: dict[Value, list[Value]]
    handed_on: set[Value]
    tail: list[Operation]
    constants: Sequence[Value]
    held: list[Operation]

    @property
    def body(self) -> Block:
        """What a step computes."""
        return cast(Block, self.loop.regions[1].blocks[0])

    @property
    def values(self) -> list[Value]:
        """All that a step adds."""
        return [value for values in self.added.values() for value in values]


def loop_sums(axes: Axes, sums: Sequence[Value], going_on: set[Value]) -> LoopSums | None:
    """How these sums, and nothing besides, are made by one loop of their block; or None.

    `going_on`: results of loops that start from what was added up before, in place of zero.
    """
    behind = closure(sums, partial(summed_operands_of, axes))
    loop = _common_loop(behind)
    counted = axes.state.structure.loop_of(loop) if loop is not None else None
    step = counted.step if counted is not None else None
    if loop is None or counted is None or step is None:
        return None
    later = _behind(loop)
    tail = [op for op in later if not behind.isdisjoint(op.results)]
    made: set[Value] = {result for op in later for result in op.results}
    constants = closure(_taken_as_constants(axes, tail), partial(_operands_in, made))
    held = [op for op in later if not constants.isdisjoint(op.results)]
    added = _added(loop, [v for v in loop.results if v in behind], going_on)
    flat = not any(op.name in mlir.CONTROL_FLOW for op in held)
    # A sum that neither is added up nor made of such sums is of the whole batch.
    known = {*loop.results, *(result for op in tail for result in op.results)}
    if added is None or not flat or not behind <= known:
        return None
    # One that is taken as a constant as well would be known to no step.
    if not added.keys().isdisjoint(constants) or not all(_is_tail(axes, op) for op in tail):
        return None
    handed_on = {v for r in added if (v := _handed_on(loop, _number(loop, r))) is not None}
    constant = [v for v in loop.results if v in constants]
    return LoopSums(loop, step, counted.trips, added, handed_on, tail, constant, held)


def summed_operands_of(axes: Axes, value: Value) -> list[Value]:
    """The sums that a value of a block is made of, up to loops and branches."""
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return []
    return [v for v, known in zip(op.operands, axes.at(op), strict=True) if axes.is_sum(known)]


def _common_loop(sums: set[Value]) -> Operation | None:
    """The one loop of which all these sums result that a loop or branch makes."""
    loops = [op for op in map(_control_flow, sums) if op is not None]
    alike = bool(loops) and all(mlir.is_same(op, loops[0]) for op in loops)
    return loops[0] if alike and loops[0].name == "stablehlo.while" else None


def _control_flow(value: Value) -> Operation | None:
    op = mlir.defining_operation(value)
    return op if op is not None and op.name in mlir.CONTROL_FLOW else None


def _behind(loop: Operation) -> list[Operation]:
    """The ops behind a loop in its block."""
    block = mlir.operations(cast(Any, loop.block))[:-1]
    places = [i for i, op in enumerate(block) if op.name == loop.name and mlir.is_same(op, loop)]
    return block[places[0] + 1 :]


def _taken_as_constants(axes: Axes, tail: Sequence[Operation]) -> list[Value]:
    pairs = [pair for op in tail for pair in zip(op.operands, axes.at(op), strict=True)]
    return [value for value, known in pairs if not axes.is_sum(known)]


def _operands_in(made: set[Value], value: Value) -> list[Value]:
    """What a value is made of, if it is one of these."""
    op = mlir.defining_operation(value)
    return [*op.operands, *mlir.captured(op)] if op is not None and value in made else []


def _added(
    loop: Operation, sums: Sequence[Value], going_on: set[Value]
) -> dict[Value, list[Value]] | None:
    """What is added in a step to these results of the loop, if all of them are sums from zero."""
    added: dict[Value, list[Value]] = {}
    for result in sums:
        number = _number(loop, result)
        within = _handed_on(loop, number)
        values = added_values(loop, number) if within is None else [within]
        starts = is_splat(loop.operands[number], 0) or result in going_on
        if values is None or not starts:
            return None
        added[result] = values
    return added


def _handed_on(loop: Operation, number: int) -> Value | None:
    """The result of a loop in the body that goes on from this carry, if the body returns it, and
    nothing else takes it.
    """
    body = cast(Any, loop.regions[1].blocks[0])
    returned = mlir.operands(mlir.return_operation(body))[number]
    within = _control_flow(returned)
    if within is None or within.name != "stablehlo.while" or within.block != body:
        return None
    start = within.operands[_number(within, returned)]
    goes_on = start == body.arguments[number]
    return returned if goes_on and len(list(returned.uses)) == 1 else None


def _number(loop: Operation, result: Value) -> int:
    return mlir.results(loop).index(result)


def _is_tail(axes: Axes, op: Operation) -> bool:
    """Whether an op behind the loop makes sums of sums, and takes constants besides."""
    known = axes.at(op)
    alone = all(axes.is_sum(c) or axes.is_shared(c) for c in known)
    return op.name not in mlir.CONTROL_FLOW and alone and any(map(axes.is_sum, known))
