"""What paired runs allow one to claim: mean differences, their intervals, and Holm's correction.

Two methods that start alike and see the same batches differ by far less than two seeds of either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tools.experiments.intervals import half_width


@dataclass(frozen=True)
class Difference:
    """Of two methods, seed by seed: the mean, half its 95 % interval, and Student's p for none."""

    mean: float
    half_width: float
    p: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.half_width:.4f}"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """The difference of two methods' losses, [seeds] each and in the same order.

    Raises ValueError where there are fewer than two seeds, not as many of both, or a run that
    diverged: no interval.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(
            f"{len(ours)} and {len(theirs)} losses: pairs need the same seeds, and two at least"
        )
    if not np.isfinite([*ours, *theirs]).all():
        raise ValueError(f"a run diverged: {list(ours)} and {list(theirs)}; count such seeds apart")
    each = np.asarray(ours, float) - np.asarray(theirs, float)
    width = half_width(each)
    p = stats.ttest_rel(ours, theirs).pvalue if width else float(not each.mean())
    return Difference(float(each.mean()), width, float(p))


def holm(
    found: Mapping[str, Difference], claims: int | None = None, level: float = 0.05
) -> dict[str, bool]:
    """Whether each difference is told from none, so that with probability 1 - level no claim of all
    is wrong (S. Holm, "A simple sequentially rejective multiple test procedure", 1979).

    `claims`: how many there are, where some have no runs yet.
    """
    by_p = sorted(found, key=lambda name: found[name].p)
    told: dict[str, bool] = {}
    number = len(by_p) if claims is None else claims
    for rank, name in enumerate(by_p):
        before = all(told.values())
        told[name] = before and found[name].p <= level / (number - rank)
    return {name: told[name] for name in found}
