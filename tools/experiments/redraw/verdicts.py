"""The paper's claims that pairs settle: what the runs say, and those of another processor.

Where sums are ordered otherwise a run ends elsewhere, as one of another seed would. Claims are of
differences, which should be the same.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from tools.experiments.intervals import difference
from tools.experiments.paired.claims import (
    CLAIMS,
    BySeed,
    Claim,
    Difference,
    compared,
    converged,
    differences,
    holm,
    pairs,
)
from tools.experiments.paired.records import Record
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.redraw.tables import seeds_of

SEEDS, RATES = 16, 5
"""Of the design."""
WORSE = {
    "sign_sgd": "SignSGD trains worse than SignEMA",
    "micro_sign_sgd": "MicroSignSGD trains worse than SignSGD",
    "micro_adam": "MicroAdam trains worse than Adam",
    "micro_adam_var": "MicroAdamVar trains worse than MicroAdam",
    "micro_adam, clipped": "MicroAdam is worse than Adam, both clipped",
    "micro_adam_var, clipped": "MicroAdamVar is worse than MicroAdam, both clipped",
}
BETTER = {
    ("micro_adam_msq, clipped", "adam, clipped"): "MicroAdamMSQ is better than Adam, both clipped",
    ("adam, clipped", "adam"): "clipping makes Adam better (not the paper's)",
    ("micro_adam, clipped", "micro_adam"): "clipping makes MicroAdam better",
}


def verdicts(records: Sequence[Record], found: Mapping[str, BySeed]) -> str:
    """Markdown: each claim with its verdict, difference and seeds."""
    measured = differences(found)
    told = holm({_name(claim): one for claim, one in measured.items()}, len(CLAIMS))
    lines = [
        state(records, found),
        "",
        "| the claim | here | difference in held-out loss, 95 % | pairs of seeds |",
        "|---|---|---|---|",
    ]
    for claim in CLAIMS:
        text = BETTER.get(claim) or WORSE[claim[0]]
        if claim not in measured:
            lines.append(f"| {text} | no pairs yet | | {seeds_of(found, *claim)} |")
            continue
        difference = measured[claim]
        said = _verdict(difference, told[_name(claim)], -1 if claim in BETTER else 1)
        lines.append(f"| {text} | {said} | {difference} | {seeds_of(found, *claim)} |")
    return "\n".join(lines)


def state(records: Sequence[Record], found: Mapping[str, BySeed]) -> str:
    """Whether these are the design's runs, or how far they are."""
    least = min((len(runs) for runs in found.values()), default=0)
    tried = [_tuning_losses(records, name) for name in CONTENDERS]
    counts = [len(losses) for losses in tried]
    if least >= SEEDS and min(counts) >= RATES:
        return f"The set is whole: {least} fresh seeds of each contender."
    within = sum(map(_is_lowest_within, tried))
    return (
        f"**Fewer runs than the design asks for**: of each contender {least} of {SEEDS} fresh "
        f"seeds,\nand {min(counts)} to {max(counts)} of {RATES} rates on all {len(TUNING)} tuning "
        f"seeds; for {within} of {len(CONTENDERS)} the best\nlies between two that are worse. A "
        "rate that was not tried might change a verdict."
    )


def _tuning_losses(records: Sequence[Record], name: str) -> list[float]:
    """The mean loss at each rate, in order, that has run on every tuning seed."""
    own = [r for r in records if (r.method, r.batch_size) == (name, BATCH_SIZE)]
    by_rate = {
        rate: {r.seed: r.loss for r in own if r.learning_rate == rate and r.seed in TUNING}
        for rate in sorted(_rates(own))
    }
    return [fmean(each.values()) for each in by_rate.values() if len(each) == len(TUNING)]


def _is_lowest_within(losses: Sequence[float]) -> bool:
    """Whether the lowest is neither the first nor the last."""
    return min(losses) < min(losses[0], losses[-1]) if losses else False


def _rates(records: Sequence[Record]) -> set[float]:
    return {record.learning_rate for record in records}


def _name(claim: Claim) -> str:
    return " - ".join(claim)


def _verdict(difference: Difference, told: bool, sign: int) -> str:
    if not told:
        return "not told apart"
    return "**agrees**" if difference.mean * sign > 0 else "**does not agree**: the opposite"


Key = tuple[str, float, int]


def replicates(kept: Sequence[Record], other: Sequence[Record]) -> str:
    """By contender how far the others' losses are off, and by claim the difference in either, of
    the runs that both have.
    """
    here, there = _by_key(kept), _by_key(other)
    common = [key for key in here if key in there]
    lines = ["| contender | runs | other less kept |", "|---|---|---|"]
    for name in CONTENDERS:
        off = [there[key].loss - here[key].loss for key in common if key[0] == name]
        if len(off) > 1:
            lines.append(f"| {CONTENDERS[name].title} | {len(off)} | {difference(off)} |")
    lines += ["", "| less | | seeds | kept | other |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *_claims_there([here[key] for key in common], there)])


def _claims_there(kept: Sequence[Record], there: Mapping[Key, Record]) -> list[str]:
    found, lines = compared(kept), list[str]()
    for ours, theirs in CLAIMS:
        both = converged(pairs(found, ours, theirs))
        if len(both) > 1:
            again = [(there[_key(a)], there[_key(b)]) for a, b in both]
            said = f"{CONTENDERS[ours].title} | {CONTENDERS[theirs].title} | {len(both)}"
            lines.append(f"| {said} | {_mean_difference(both)} | {_mean_difference(again)} |")
    return lines


def _mean_difference(both: Sequence[tuple[Record, Record]]) -> str:
    return f"{np.mean([ours.loss - theirs.loss for ours, theirs in both]):+.4f}"


def _by_key(records: Sequence[Record]) -> dict[Key, Record]:
    return {_key(record): record for record in records if record.batch_size == BATCH_SIZE}


def _key(record: Record) -> Key:
    return record.method, record.learning_rate, record.seed
