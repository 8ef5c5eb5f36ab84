"""The paper's claims that are settled by pairs: in words, and what the runs say of each."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from tools.experiments.paired.claims import Difference, holm
from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.found import CLAIMS, BySeed, Claim, differences
from tools.experiments.paired.records import Record
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


def table(records: Sequence[Record], found: Mapping[str, BySeed]) -> str:
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
