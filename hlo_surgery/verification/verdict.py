"""Verdicts: what verification showed; a value that prints what failed and the worst that passed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hlo_surgery.verification.tolerances import Comparison


@dataclass(frozen=True)
class Verdict:
    """What running the original showed, with every comparison; it prints. `taken`: which outputs as
    gradients.
    """

    verdict: Literal["equivalent", "not equivalent", "not applicable"]
    why: str
    comparisons: tuple[Comparison, ...] = ()
    taken: str = ""

    def __str__(self) -> str:
        head = [f"{self.verdict}: {self.why}", *([f"  {self.taken}"] if self.taken else [])]
        return "\n".join([*head, *(f"  {_comparison_text(c)}" for c in notable(self.comparisons))])


def notable(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Of each kind all that failed, or else the one nearest to its tolerance."""
    chosen: list[Comparison] = []
    for kind in dict.fromkeys(c.kind for c in comparisons):
        alike = [c for c in comparisons if c.kind == kind]
        chosen += [c for c in alike if not c.passes] or [max(alike, key=lambda c: c.share)]
    return chosen


def _comparison_text(comparison: Comparison) -> str:
    result = "within" if comparison.passes else "beyond"
    return (
        f"{comparison.kind} {comparison.name}: off by {comparison.error:.2g} of its largest entry, "
        f"{result} the tolerance ({comparison.share:.2g} of it)"
    )
