"""Answers: how statistics of gradients are asked for, and what was chosen for each gradient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.costs.site_counts import SitePlan, site_plan
from hlo_surgery.passes.emit.closed_over import ClosedOver
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.strategies.choice import Limits
from hlo_surgery.passes.strategies.strategy import Chosen
from hlo_surgery.passes.strategies.task import Examples
from hlo_surgery.passes.terms.steps import GradientSlice


@dataclass(frozen=True)
class Asking:
    """How measures are asked for. `reweights`: whether sums of gradients with weights are made;
    `gradients`: how many targets are some; `asked_by`: the names of the statistics that
    are made of a measure; `given`: further values that `finish` knows; `platform`: for which what
    is asked is lowered, None being JAX's default; `devices`: how many the module names.
    """

    examples: Examples
    device: Roofline
    limits: Limits
    reweights: bool
    gradients: int
    closed_over: ClosedOver
    asked_by: Mapping[Measure, Sequence[str]]
    given: Sequence[Value] = ()
    platform: str | None = None
    devices: int = 1


@dataclass(frozen=True)
class Target:
    """A gradient, as the operand of an op that stays when loops are rebuilt."""

    user: Operation
    operand: int
    name: str

    @property
    def value(self) -> Value:
        """The gradient."""
        return self.user.operands[self.operand]


@dataclass(frozen=True)
class Answer:
    """What was chosen for a gradient, and the gradient where it came from the examples' own.

    Of what a loop stacks, it was chosen for one of its slices, of which there are `trips`. `sites`,
    `tail`, the gradient's size in `bytes` and whether examples reach it are told apart from their
    ops, which may be gone when they are asked for.
    """

    chosen: Chosen
    sites: tuple[SitePlan, ...]
    tail: tuple[str, ...]
    bytes: int
    is_reached: bool
    gradient: Value | None = None
    trips: int = 1


def answer_behind(inside: Answer, tail: GradientSlice) -> Answer:
    """The answer for a gradient behind a loop, from that for its slices."""
    return replace(inside, gradient=None, tail=(*inside.tail, *_names(tail)))


def answer_of(chosen: Chosen, gradient: Value | None) -> Answer:
    """The answer for a gradient of the block itself."""
    sliced = chosen.task.sliced
    sites = tuple(site_plan(step.op) for step in sliced.sites)
    is_reached = bool(sliced.inputs and (sliced.steps or sliced.output[1] is not None))
    own = chosen.task.counts.gradient
    return Answer(chosen, sites, _names(sliced), own, is_reached, gradient)


def _names(sliced: GradientSlice) -> tuple[str, ...]:
    """The ops of a tail."""
    return tuple(step.op.name for step in sliced.tail)
