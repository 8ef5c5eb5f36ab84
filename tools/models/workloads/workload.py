"""What a workload is: a problem, and its arguments for two sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.models.problem import Build, Problem


@dataclass(frozen=True)
class Workload:
    """`small` runs on a CPU in seconds; `full` has AlgoPerf's sizes, the paper's batch a device."""

    problem: Build
    small: Mapping[str, Any]
    full: Mapping[str, Any]

    def of(self, size: str, **others: Any) -> Problem:
        """The problem of a size, "small" or "full", with other arguments put in its place."""
        return self.problem(**{**(self.full if size == "full" else self.small), **others})
