"""Output plans: what was chosen for one gradient, as values that print."""

from dataclasses import replace

from hlo_surgery.passes.costs.site_counts import site_counts
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.strategies.strategy import Chosen
from hlo_surgery.passes.terms.gradient_slices import GradientSlice
from hlo_surgery.planning.plan import OutputPlan, SitePlan


def output_plan(name: str, chosen: Chosen) -> OutputPlan:
    """The plan of a gradient that goes by this name."""
    sliced, size = chosen.task.sliced, chosen.task.examples.size
    reached = sliced.inputs and (sliced.steps or sliced.output[1] is not None)
    return OutputPlan(
        name,
        tuple(_site_plan(step.op) for step in sliced.sites),
        tuple(step.op.name for step in sliced.tail),
        {measure: strategy.name for measure, strategy in chosen.strategies.items()},
        size * chosen.task.counts.gradient,
        chosen.schedule.chunk,
        chosen.predicted,
        "" if reached or size == 1 else "no example reaches this gradient",
    )


def _site_plan(op: Operation) -> SitePlan:
    counts = site_counts(op)
    return SitePlan(op.name, source_line(op), counts.flops, counts.read + counts.written)


def stacked_plan(name: str, inside: OutputPlan, tail: GradientSlice) -> OutputPlan:
    """The plan of a gradient that a loop stacks, from that of its slices, and what is behind it."""
    ops = tuple(step.op.name for step in tail.tail)
    return replace(inside, name=name, tail=(*inside.tail, *ops))


def repeated_plan(plan: OutputPlan, trips: int) -> OutputPlan:
    """The plan of one slice as the plan of the stack of all that a loop makes."""
    sites = tuple(
        replace(s, flops=s.flops * trips, bytes=s.bytes * trips, trips=s.trips * trips)
        for s in plan.sites
    )
    predicted = {name: replace(p, seconds=p.seconds * trips) for name, p in plan.predicted.items()}
    return replace(plan, sites=sites, predicted=predicted)
