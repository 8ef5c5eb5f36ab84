"""Roles: what the arguments and outputs of a module are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hlo_surgery.passes.normalise.custom_calls import CallAxes


@dataclass(frozen=True)
class Roles:
    """What arguments and outputs are, by number. `batch`: the examples' axis by argument.

    `contribution`: whether all that is mixed counts as constant. `custom_calls`: what is declared
    of some. `pruned`: whether what no output needs may have been left out of the module.
    """

    batch: Mapping[int, int]
    size: int
    gradients: Sequence[int]
    losses: Sequence[int]
    contribution: bool
    custom_calls: CallAxes = field(default_factory=dict[str, Any])
    pruned: bool = False
