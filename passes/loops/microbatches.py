"""Microbatches: a loop of which each step adds the gradients of examples of its own.

    %g = while (%c = %zero) { add %c, %u }      %u: sums over the examples of the step
    %m = multiply %g, %scale                    =>  example b's part of %m is that of its one step

An example lies in one step alone, so that what is taken of its gradient can be taken in that step,
where no other step's examples need to be in memory. Where each step is a loop over microbatches of
its own, the steps are those of the innermost.
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
from hlo_surgery.passes.ir.mlir import Block, Value, Values
from hlo_surgery.passes.loops.loop_sums import LoopSums, loop_sums, reached_values
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves
from hlo_surgery.passes.terms.steps import Axes


@dataclass(frozen=True)
class Microbatches:
    """`nest`: loops, outermost first, of which the innermost adds gradients of its steps' examples,
    and each other what the one within has added up.

    `members`: [steps, M], of all steps of the innermost; `axes`: the problem of a step.
    """

    nest: Sequence[LoopSums]
    members: Numbers
    axes: Axes

    @property
    def body(self) -> Block:
        """What a step computes."""
        return self.nest[-1].body

    @property
    def counters(self) -> Values:
        """The number of the step in each of the loops, in the body of the innermost."""
        return [sums.step for sums in self.nest]

    @property
    def steps(self) -> int:
        """How many microbatches there are."""
        return len(self.members)

    @property
    def size(self) -> int:
        """M, the examples of each."""
        return self.members.shape[1]


def find_microbatches(axes: Axes, gradients: Values) -> Microbatches | None:
    """The loops that add up all these values of main, if they hold nothing else; or None."""
    summed = [v for v in gradients if axes.sums(v)]
    if not all(vanishes(v) for v in gradients if v not in summed):
        return None
    nest = _nest(axes, summed)
    if not nest or any(constant_terms(axes.state, gradient) for gradient in summed):
        return None
    found = (_microbatches(axes, nest[:depth]) for depth in range(len(nest), 0, -1))
    return next((each for each in found if each is not None), None)


def _nest(axes: Axes, sums: Values) -> list[LoopSums]:
    """The loops, each in the body of the one before, that add up these sums."""
    nest = list[LoopSums]()
    while found := loop_sums(axes, sums, nest[-1].handed_on if nest else set()):
        if nest and found.loop.block != nest[-1].body:
            break
        nest.append(found)
        sums = [v for v in found.values if not is_splat(v, 0)]
    return nest


def _microbatches(axes: Axes, nest: Sequence[LoopSums]) -> Microbatches | None:
    """The steps of the innermost loop, if each holds examples of its own and nothing besides."""
    loop, values = nest[-1].loop, nest[-1].values
    reached = reached_values(axes, values)
    orders = [order for sums in nest if (order := _order(axes, sums))]
    around = [d for _, digits in orders for d in digits]
    apart = len(orders) == len(nest) and len(set(around)) == len(around)
    if not apart or not reached.isdisjoint(mlir.captured(loop)):
        return None
    batch = tuple(d for d in axes.batch if d not in around)
    members = _members(axes, orders, [*around, *batch])
    step = Axes(axes.state, batch, members.shape[1], tuple(around), axes.count)
    alone = all(_is_share(step, value) for value in values)
    if not alone or not all(_holds_examples_alone(step, value) for value in reached):
        return None
    return Microbatches(nest, members, step)


def _order(axes: Axes, sums: LoopSums) -> tuple[Sequence[int], Digits] | None:
    """The digits of the batch that a loop takes step by step, whole, and in which order; None where
    it does not.
    """
    loop = axes.state.structure.loop_of(sums.loop)
    orders = [(order, leaves([digit])) for order, digit in loop.digits.items()] if loop else []
    return next((each for each in orders if each[1] and set(each[1]) <= set(axes.batch)), None)


def _members(
    axes: Axes, orders: Sequence[tuple[Sequence[int], Digits]], digits: Sequence[Digit]
) -> Numbers:
    """[steps, M]: the examples of each step, by their numbers."""
    numbers = np.arange(axes.size).reshape([d.size for d in axes.batch])
    numbers = numbers.transpose([axes.batch.index(d) for d in digits])
    numbers = numbers.reshape([*(len(order) for order, _ in orders), -1])
    for axis, (order, _) in enumerate(orders):
        numbers = numbers.take(order, axis)
    return numbers.reshape(-1, numbers.shape[-1])


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
