"""Microbatches: a loop of which each step adds the gradients of examples of its own.

    %g = while (%c = %zero) { add %c, %u }      %u: sums over the examples of the step
    %m = multiply %g, %scale                    =>  example b's part of %m is that of its one step

An example lies in one step alone, so that what is taken of its gradient can be taken in that step,
where no other step's examples need to be in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat, vanishes
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.loops.added_values import added_values
from hlo_surgery.passes.owners.alignment.constant_parts import has_constant_part
from hlo_surgery.passes.owners.classes import Owned, Owners, is_shared, is_sum
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import NONE, Numbers
from hlo_surgery.passes.terms.axes import Axes, Class, Labelled, Mixed, Summed
from hlo_surgery.passes.terms.microbatch_axes import members_of, microbatch_axes
from hlo_surgery.passes.terms.translation import step_number


@dataclass(frozen=True)
class Sums:
    """How gradients are made of what a loop adds up.

    `added`: what a step adds, by result of the loop; `tail`: the ops from these to the gradients,
    in order. `constants`: results that are taken as constants, such as a sum of weights, and `held`
    the ops behind the loop that make constants for the tail.
    """

    added: dict[Value, list[Value]]
    tail: list[Operation]
    constants: Sequence[Value]
    held: list[Operation]


@dataclass(frozen=True)
class Microbatches:
    """`loop` adds up gradients of its steps' examples, `members` [steps, M].

    `step`: the step's number, in the body; `axes`: how the values of a step hold its examples.
    """

    loop: Operation
    step: Value
    members: Numbers
    sums: Sums
    axes: Axes

    @property
    def body(self) -> Block:
        """What a step computes."""
        return cast(Block, self.loop.regions[1].blocks[0])

    @property
    def steps(self) -> int:
        """How many microbatches there are."""
        return len(self.members)

    @property
    def size(self) -> int:
        """M, the examples of each."""
        return self.members.shape[1]


def find_microbatches(owners: Owners, gradients: Sequence[Value]) -> Microbatches | None:
    """The one loop that adds up all these values of main, if they hold nothing else; or None."""
    summed = [v for v in gradients if is_sum(owners.of(v))]
    if not all(vanishes(v) for v in gradients if v not in summed):
        return None
    behind = closure(summed, partial(_summed_operands, owners))
    loop = _common_loop(behind)
    counted = counted_loop(owners, loop) if loop is not None else None
    step = step_number(counted) if counted is not None else None
    sums = _sums_behind(owners, loop, behind) if loop is not None else None
    if loop is None or counted is None or step is None or sums is None:
        return None
    values = [v for added in sums.added.values() for v in added]
    reached = _summed(owners, values)
    members = _members(owners, [*values, *_operands_of(reached)], counted.trips)
    if members is None or any(has_constant_part(owners, gradient) for gradient in summed):
        return None
    axes = microbatch_axes(owners, loop, members)
    alone = all(_is_share(owners, value, members.shape[1]) for value in values)
    if not alone or not all(_holds_examples_alone(axes, value) for value in reached):
        return None
    return Microbatches(loop, step, members, sums, axes)


def _sums_behind(owners: Owners, loop: Operation, sums: set[Value]) -> Sums | None:
    """How these sums, which lie between a loop and gradients, are made of what it adds up; None
    where another loop or branch takes part, or what is not linear in the sums.
    """
    behind = _behind(loop)
    tail = [op for op in behind if not sums.isdisjoint(op.results)]
    made: set[Value] = {result for op in behind for result in op.results}
    constants = closure(_taken_as_constants(owners, tail), partial(_operands_in, made))
    held = [op for op in behind if not constants.isdisjoint(op.results)]
    added = _added(loop, [v for v in loop.results if v in sums])
    flat = not any(op.name in mlir.CONTROL_FLOW for op in held)
    # A sum that neither is added up nor made of such sums is of the whole batch.
    known = {*loop.results, *(result for op in tail for result in op.results)}
    if added is None or not flat or not sums <= known:
        return None
    # One that is taken as a constant as well would be known to no step.
    if not added.keys().isdisjoint(constants) or not all(_is_tail(owners, op) for op in tail):
        return None
    return Sums(added, tail, [v for v in loop.results if v in constants], held)


def _common_loop(sums: set[Value]) -> Operation | None:
    """The loop of main of which all these sums result that a loop or branch makes."""
    loops = [op for op in map(_control_flow, sums) if op is not None]
    alike = bool(loops) and all(mlir.is_same(op, loops[0]) for op in loops)
    return loops[0] if alike and loops[0].name == "stablehlo.while" else None


def _control_flow(value: Value) -> Operation | None:
    op = mlir.defining_operation(value)
    return op if op is not None and op.name in mlir.CONTROL_FLOW else None


def _summed_operands(owners: Owners, value: Value) -> list[Value]:
    """The sums that a value of a block is made of, up to loops and branches."""
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return []
    return [v for v, known in zip(op.operands, owners.at(op), strict=True) if is_sum(known)]


def _summed(owners: Owners, values: Sequence[Value]) -> set[Value]:
    """All sums that values rest on, through loops and branches."""

    def behind(value: Value) -> list[Value]:
        op = mlir.defining_operation(value)
        if op is None or op.name in mlir.CONTROL_FLOW:
            return [v for v in ties(value) if is_sum(owners.of(v))]
        return _summed_operands(owners, value)

    return closure([v for v in values if is_sum(owners.of(v))], behind)


def _behind(loop: Operation) -> list[Operation]:
    """The ops behind a loop of main."""
    block = mlir.operations(cast(Any, loop.block))[:-1]
    places = [i for i, op in enumerate(block) if op.name == loop.name and mlir.is_same(op, loop)]
    return block[places[0] + 1 :]


def _taken_as_constants(owners: Owners, tail: Sequence[Operation]) -> list[Value]:
    pairs = [pair for op in tail for pair in zip(op.operands, owners.at(op), strict=True)]
    return [value for value, known in pairs if not is_sum(known)]


def _operands_in(made: set[Value], value: Value) -> list[Value]:
    """What a value is made of, if it is one of these."""
    op = mlir.defining_operation(value)
    return [*op.operands, *mlir.captured(op)] if op is not None and value in made else []


def _added(loop: Operation, sums: Sequence[Value]) -> dict[Value, list[Value]] | None:
    """What is added in a step to these results of the loop, if all of them are sums from zero."""
    added: dict[Value, list[Value]] = {}
    for result in sums:
        number = mlir.results(loop).index(result)
        values = added_values(loop, number)
        if values is None or not is_splat(loop.operands[number], 0):
            return None
        added[result] = values
    return added


def _is_tail(owners: Owners, op: Operation) -> bool:
    """Whether an op behind the loop makes sums of sums, and takes constants besides."""
    known = owners.at(op)
    alone = all(is_sum(c) or is_shared(c) for c in known)
    return op.name not in mlir.CONTROL_FLOW and alone and any(map(is_sum, known))


def _operands_of(sums: set[Value]) -> list[Value]:
    ops = [op for op in map(mlir.defining_operation, sums) if op is not None]
    return [v for op in ops if op.name not in mlir.CONTROL_FLOW for v in op.operands]


def _members(owners: Owners, values: Sequence[Value], steps: int) -> Numbers | None:
    """The examples of each step, as they come in what is contracted or added."""
    known = [owners.of(v) for v in values]
    owned = [c.labels for c in known if isinstance(c, Owned) and not c.is_shared]
    found = (members_of(labels, steps, owners.size) for labels in dict.fromkeys(owned))
    return next((members for members in found if members is not None), None)


def _is_share(owners: Owners, value: Value, size: int) -> bool:
    """Whether what a step adds is a sum of its examples' shares, or all of it a single one's."""
    known = owners.of(value)
    if isinstance(known, Owned) and not known.is_shared:
        return size == 1 and not known.offset and not bool((known.labels.owners == NONE).any())
    return is_sum(known) or is_splat(value, 0)


def _holds_examples_alone(axes: Axes, value: Value) -> bool:
    """Whether a sum of a step is of the step's examples, and of nothing besides.

    A sum that goes on from step to step is none: what it is behind the loop is no value of a step.
    """
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return all(isinstance(axes.of(v), Summed) or is_splat(v, 0) for v in ties(value))
    return all(map(_is_whole, axes.at(op)))


def _is_whole(known: Class) -> bool:
    """Whether it is known whose all elements are; of labels, that none is nobody's."""
    if isinstance(known, Labelled):
        return not bool((known.labels.owners == NONE).any())
    return not isinstance(known, Mixed)
