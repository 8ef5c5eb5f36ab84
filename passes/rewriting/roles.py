"""Roles: what the arguments and outputs of a module are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hlo_surgery.passes.normalise.custom_calls import CallAxes


@dataclass(frozen=True)
class Roles:
    """What arguments and outputs are, by number. `batch`: the examples' axis by argument.

    `contribution`: whether all that is mixed counts as constant. `custom_calls`: what is declared
    of some. `segments`: of batch arguments whose rows lie anywhere, which one has the ids of their
    examples. `pruned`: whether what no output needs may have been left out of the module.
    `sums_padding`: whether the loss is a sum, over rows of which some are no examples'.
    `by_element`: whether what is nobody's beside examples' values is told apart everywhere.
    """

    batch: Mapping[int, int]
    size: int
    gradients: Sequence[int]
    losses: Sequence[int]
    contribution: bool
    custom_calls: CallAxes = field(default_factory=dict[str, Any])
    segments: Mapping[int, int] = field(default_factory=dict[int, int])
    pruned: bool = False
    sums_padding: bool = False
    by_element: bool = False
