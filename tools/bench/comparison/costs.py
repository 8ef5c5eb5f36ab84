"""Costs of what a bench compiles; none of unknown trip counts, as work and time then are, too."""

from typing import Any

from hlo_surgery.targets.costs import Cost, cost_of
from hlo_surgery.targets.target import Target


def known_cost(executable: Any, target: Target) -> Cost:
    """What it costs. Raises ValueError where a loop runs as often as data says."""
    cost = cost_of(executable, target)
    if cost.unknown_loops:
        raise ValueError(
            f"the trip counts of {cost.unknown_loops} loops are unknown; their work cannot be "
            "counted"
        )
    return cost
