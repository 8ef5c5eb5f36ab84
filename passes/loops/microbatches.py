"""Microbatches: a loop of which each step adds the gradients of examples of its own.

    %g = while (%c = %zero) { add %c, %u }      %u: sums over the examples of the step
    %m = multiply %g, %scale                    =>  example b's part of %m is that of its one step

An example lies in one step alone, so that what is taken of its gradient can be taken in that step,
where no other step's examples need to be in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hlo_surgery.passes.axes.state import Mixed, is_rows, is_sum
from hlo_surgery.passes.axes.verdicts import constant_terms
from hlo_surgery.passes.dataflow.ancestors import is_splat, ties
from hlo_surgery.passes.dataflow.numbers import Numbers
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.loops.loop_sums import LoopSums, loop_sums, reached_values
from hlo_surgery.passes.structure.digits import Digit, leaves
from hlo_surgery.passes.terms.steps import Axes


@dataclass(frozen=True)
class Microbatches:
    """`sums`: what a loop adds up, step by step; `members`: [steps, M], the examples of each;
    `axes`: the problem of a step.
    """

    sums: LoopSums
    members: Numbers
    axes: Axes

    @property
    def steps(self) -> int:
        """How many microbatches there are."""
        return len(self.members)

    @property
    def size(self) -> int:
        """M, the examples of each."""
        return self.members.shape[1]


def find_microbatches(axes: Axes, gradients: Sequence[Value]) -> Microbatches | None:
    """The loop that adds up all these values of main, if it holds nothing else, and each step has
    examples of its own and nothing besides; or None.
    """
    summed = [v for v in gradients if axes.sums(v)]
    if not all(vanishes(v) for v in gradients if v not in summed):
        return None
    sums = loop_sums(axes, summed)
    if sums is None or any(constant_terms(axes.state, gradient) for gradient in summed):
        return None
    order, reached = _order(axes, sums), reached_values(axes, sums.values)
    if order is None or not reached.isdisjoint(mlir.captured(sums.loop)):
        return None
    members = _members(axes, *order)
    batch = tuple(d for d in axes.batch if d not in order[1])
    step = Axes(axes.state, batch, members.shape[1], tuple(order[1]))
    alone = all(_is_share(step, value) for value in sums.values)
    if not alone or not all(_holds_examples_alone(step, value) for value in reached):
        return None
    return Microbatches(sums, members, step)


def _order(axes: Axes, sums: LoopSums) -> tuple[Sequence[int], list[Digit]] | None:
    """In which order a loop takes digits of the batch step by step, whole, and which; None where it
    does not.
    """
    loop = axes.state.structure.loop_of(sums.loop)
    orders = [(order, leaves([digit])) for order, digit in loop.digits.items()] if loop else []
    return next((each for each in orders if each[1] and set(each[1]) <= set(axes.batch)), None)


def _members(axes: Axes, order: Sequence[int], around: list[Digit]) -> Numbers:
    """[steps, M]: the examples of each step, by their numbers."""
    numbers = np.arange(axes.size).reshape([d.size for d in axes.batch])
    ahead = np.moveaxis(numbers, list(map(axes.batch.index, around)), range(len(around)))
    return ahead.reshape(len(order), -1)[list(order)]


def _is_share(step: Axes, value: Value) -> bool:
    """Whether what a step adds is a sum of its examples' shares, or all of it its single one's."""
    known = step.of(value)
    if is_rows(known):
        return not step.batch
    return is_sum(known) or is_splat(value, 0)


def _holds_examples_alone(step: Axes, value: Value) -> bool:
    """Whether a sum of a step is of the step's examples, and of nothing besides.

    A sum that goes on from step to step is none: what it is behind the loop is no value of a step.
    """
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return all(step.sums(v) or is_splat(v, 0) for v in ties(value))
    return not any(isinstance(known, Mixed) for known in step.at(op))
