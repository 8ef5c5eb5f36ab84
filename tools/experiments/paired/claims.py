"""What paired runs allow one to claim: mean differences, intervals, Holm's correction.

Two methods that start alike and see the same batches differ by far less than two seeds of either.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tools.experiments.intervals import half_width
from tools.experiments.paired.language_model import best_rates
from tools.experiments.paired.records import Record
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS, TUNING


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


CLAIMS = (
    ("sign_sgd", "sign_ema"),
    ("micro_sign_sgd", "sign_sgd"),
    ("micro_adam", "adam"),
    ("micro_adam_var", "micro_adam"),
    ("micro_adam, clipped", "adam, clipped"),
    ("micro_adam_var, clipped", "micro_adam, clipped"),
    ("micro_adam_msq, clipped", "adam, clipped"),
    ("adam, clipped", "adam"),
    ("micro_adam, clipped", "micro_adam"),
)
"""Of `DESIGN.md`, in its order: the first less the second."""
Claim = tuple[str, str]
BySeed = Mapping[int, Record]


def compared(records: Sequence[Record]) -> dict[str, BySeed]:
    """By contender the runs of fresh seeds at the rate that tuning chose, by seed.

    Where tuning has just chosen another, at which no fresh seed has run yet, at the rate before it.
    """
    best = best_rates(records)
    usual = [record for record in records if record.batch_size == BATCH_SIZE]
    fresh = [record for record in usual if record.seed not in TUNING]
    found: dict[str, BySeed] = {}
    for name in CONTENDERS:
        own = [record for record in fresh if record.method == name]
        counts = Counter(record.learning_rate for record in own)
        if counts:
            rate = best[name] if best[name] in counts else counts.most_common(1)[0][0]
            found[name] = {run.seed: run for run in own if run.learning_rate == rate}
    return found


def pairs(found: Mapping[str, BySeed], ours: str, theirs: str) -> list[tuple[Record, Record]]:
    """The runs of two contenders, of the seeds that both have."""
    common = sorted(found.get(ours, {}).keys() & found.get(theirs, {}).keys())
    return [(found[ours][seed], found[theirs][seed]) for seed in common]


def curves_between(found: Mapping[str, BySeed], ours: str, theirs: str) -> list[np.ndarray]:
    """Differences of training losses along the run, seed by seed."""
    return [np.subtract(a.curve, b.curve) for a, b in pairs(found, ours, theirs)]


def converged(both: Sequence[tuple[Record, Record]]) -> list[tuple[Record, Record]]:
    """The pairs of which neither run diverged."""
    return [(ours, theirs) for ours, theirs in both if np.isfinite([ours.loss, theirs.loss]).all()]


def differences(found: Mapping[str, BySeed]) -> dict[Claim, Difference]:
    """Of held-out losses at the end, for each claim with two pairs or more that converged."""
    each = {claim: converged(pairs(found, *claim)) for claim in CLAIMS}
    return {
        claim: paired([ours.loss for ours, _ in both], [theirs.loss for _, theirs in both])
        for claim, both in each.items()
        if len(both) > 1
    }
