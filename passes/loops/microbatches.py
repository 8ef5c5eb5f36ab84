"""Microbatches: a loop of which each step adds the gradients of examples of its own.

    %g = while (%c = %zero) { add %c, %u }      %u: sums over the examples of the step
    %m = multiply %g, %scale                    =>  example b's part of %m is that of its one step

An example lies in one step alone, so that what is taken of its gradient can be taken in that step,
where no other step's examples need to be in memory. Where each step is a loop over microbatches of
its own, the steps are those of the innermost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.loops.loop_sums import LoopSums, loop_sums, summed_operands_of
from hlo_surgery.passes.loops.microbatch_axes import members_of, microbatch_axes
from hlo_surgery.passes.owners.alignment.constant_parts import has_constant_part
from hlo_surgery.passes.owners.classes import (
    Mixed,
    Owned,
    Summed,
    is_sum,
)
from hlo_surgery.passes.owners.labelling.labels import NONE, Numbers
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.terms.axes import Axes, Class, Labelled


@dataclass(frozen=True)
class Microbatches:
    """`nest`: loops, outermost first, of which the innermost adds gradients of its steps' examples,
    and each other what the one within has added up.

    `members`: [steps, M], of all steps of the innermost; `axes`: how the values of a step hold its
    examples.
    """

    nest: Sequence[LoopSums]
    members: Numbers
    axes: Axes

    @property
    def body(self) -> Block:
        """What a step computes."""
        return self.nest[-1].body

    @property
    def steps(self) -> int:
        """How many microbatches there are."""
        return len(self.members)

    @property
    def size(self) -> int:
        """M, the examples of each."""
        return self.members.shape[1]


def find_microbatches(owners: Owners, gradients: Sequence[Value]) -> Microbatches | None:
    """The loops that add up all these values of main, if they hold nothing else; or None."""
    summed = [v for v in gradients if is_sum(owners.of(v))]
    if not all(vanishes(v) for v in gradients if v not in summed):
        return None
    nest = _nest(owners, summed)
    if not nest or any(has_constant_part(owners, gradient) for gradient in summed):
        return None
    found = (_microbatches(owners, nest[:depth]) for depth in range(len(nest), 0, -1))
    return next((each for each in found if each is not None), None)


def _nest(owners: Owners, sums: Sequence[Value]) -> list[LoopSums]:
    """The loops, each in the body of the one before, that add up these sums."""
    nest = list[LoopSums]()
    while found := loop_sums(owners, sums, nest[-1].handed_on if nest else set()):
        if nest and found.loop.block != nest[-1].body:
            break
        nest.append(found)
        sums = [v for v in found.values if not is_splat(v, 0)]
    return nest


def _microbatches(owners: Owners, nest: Sequence[LoopSums]) -> Microbatches | None:
    """The steps of the innermost loop, if each holds examples of its own and nothing besides."""
    loop, values = nest[-1].loop, nest[-1].values
    reached = _summed(owners, values)
    trips = [sums.trips for sums in nest]
    members = _members(owners, [*values, *_operands_of(reached)], trips)
    if members is None or not reached.isdisjoint(mlir.captured(loop)):
        return None
    axes = microbatch_axes(owners, loop, trips, members)
    alone = all(_is_share(owners, axes, value, members.shape[1]) for value in values)
    if not alone or not all(_holds_examples_alone(axes, value) for value in reached):
        return None
    return Microbatches(nest, members, axes)


def _summed(owners: Owners, values: Sequence[Value]) -> set[Value]:
    """All sums that values rest on, through loops and branches."""

    def behind(value: Value) -> list[Value]:
        op = mlir.defining_operation(value)
        if op is None or op.name in mlir.CONTROL_FLOW:
            return [v for v in ties(value) if is_sum(owners.of(v))]
        return summed_operands_of(owners, value)

    return closure([v for v in values if is_sum(owners.of(v))], behind)


def _operands_of(sums: set[Value]) -> list[Value]:
    ops = [op for op in map(mlir.defining_operation, sums) if op is not None]
    return [v for op in ops if op.name not in mlir.CONTROL_FLOW for v in op.operands]


def _members(owners: Owners, values: Sequence[Value], trips: Sequence[int]) -> Numbers | None:
    """The examples of each step, as they come in what is contracted or added."""
    known = [owners.of(v) for v in values]
    owned = [c.labels for c in known if isinstance(c, Owned) and not c.is_shared]
    found = (members_of(labels, trips, owners.size) for labels in dict.fromkeys(owned))
    return next((members for members in found if members is not None), None)


def _is_share(owners: Owners, axes: Axes, value: Value, size: int) -> bool:
    """Whether what a step adds is a sum of its examples' shares, or all of it its single one's."""
    known = owners.of(value)
    if isinstance(known, Owned) and not known.is_shared:
        whole = not known.offset and not bool((known.labels.owners == NONE).any())
        return size == 1 and whole and not isinstance(axes.of(value), Mixed)
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
