"""Output plans: what was chosen for one gradient, as values that print."""

from dataclasses import replace

from hlo_surgery.passes.rewriting.replacement import Answer
from hlo_surgery.passes.strategies.gradient_costs import SitePlan
from hlo_surgery.planning.plan import OutputPlan


def output_plan(name: str, answer: Answer) -> OutputPlan:
    """The plan of a gradient that goes by this name; of a loop's slices for all of them."""
    chosen, trips = answer.chosen, answer.trips
    size = chosen.task.examples.size
    return OutputPlan(
        name,
        tuple(_repeated(site, trips) for site in answer.sites),
        answer.tail,
        {measure: strategy.name for measure, strategy in chosen.strategies.items()},
        size * answer.bytes * trips,
        chosen.schedule.chunk,
        {n: replace(p, seconds=p.seconds * trips) for n, p in chosen.predicted.items()},
        "" if answer.is_reached or size == 1 else "no example reaches this gradient",
    )


def _repeated(site: SitePlan, trips: int) -> SitePlan:
    """What a site takes in all its runs."""
    return replace(site, flops=site.flops * trips, bytes=site.bytes * trips, trips=trips)
