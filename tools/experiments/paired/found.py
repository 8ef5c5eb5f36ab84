"""The language model's runs by contender and seed, and the differences that are claimed of."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tools.experiments.paired.claims import Difference, paired
from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.language_model import best_rates
from tools.experiments.paired.records import Record

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
