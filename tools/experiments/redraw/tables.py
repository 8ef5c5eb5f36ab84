"""The tables of the language model's runs, in Markdown."""

from collections.abc import Mapping, Sequence

import numpy as np

from tools.experiments.intervals import interval
from tools.experiments.paired.claims import holm
from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.found import CLAIMS, BySeed, differences, pairs
from tools.experiments.paired.records import Record

BEGUN = 8
"""Of a run's 64 parts, those in which every loss still falls."""


def all_tables(records: Sequence[Record], found: Mapping[str, BySeed]) -> str:
    """One below the other."""
    each = (tuning(records), contenders(found), claims(found), steadiness(found))
    return "\n\n".join(each)


def tuning(records: Sequence[Record]) -> str:
    """Mean held-out losses of the tuning seeds, by contender and rate."""
    lines = ["| contender | learning rate: mean loss of the tuning seeds |", "|---|---|"]
    usual = [r for r in records if r.seed in TUNING and r.batch_size == BATCH_SIZE]
    for name in CONTENDERS:
        own = [record for record in usual if record.method == name]
        rates = sorted({record.learning_rate for record in own})
        said = ", ".join(f"{rate:.3g}: {_mean_at(own, rate)}" for rate in rates)
        lines += [f"| {CONTENDERS[name].title} | {said} |"] if own else []
    return "\n".join(lines)


def _mean_at(records: Sequence[Record], rate: float) -> str:
    losses = [record.loss for record in records if record.learning_rate == rate]
    lacking = f" ({len(losses)} of {len(TUNING)})" if len(losses) < len(TUNING) else ""
    return f"{np.mean(losses):.3f}{lacking}"


def contenders(found: Mapping[str, BySeed]) -> str:
    """Each contender's rate and loss over its fresh seeds."""
    lines = ["| contender | learning rate | seeds | held-out loss |", "|---|---|---|---|"]
    for name, runs in found.items():
        losses = [run.loss for run in runs.values()]
        rate = next(iter(runs.values())).learning_rate
        said = interval(losses) if len(losses) > 1 else f"{losses[0]:.3f}"
        lines.append(f"| {CONTENDERS[name].title} | {rate:.3g} | {len(losses)} | {said} |")
    return "\n".join(lines)


def claims(found: Mapping[str, BySeed]) -> str:
    """The differences that are claimed of, and whether each is told from none."""
    measured = differences(found)
    told = holm({f"{a} - {b}": each for (a, b), each in measured.items()}, len(CLAIMS))
    lines = ["| less | | seeds | difference | p | told apart |", "|---|---|---|---|---|---|"]
    for (a, b), difference in measured.items():
        answer = "yes" if told[f"{a} - {b}"] else "no"
        seeds, both = len(pairs(found, a, b)), f"{CONTENDERS[a].title} | {CONTENDERS[b].title}"
        lines.append(f"| {both} | {seeds} | {difference} | {difference.p:.2g} | {answer} |")
    return "\n".join(lines)


def steadiness(found: Mapping[str, BySeed]) -> str:
    """How far a part's mean loss rises above the lowest so far (a spike), and how far the loss goes
    from part to part; both after the first eighth of the run.
    """
    lines = [
        "| contender | seeds | largest rise above the lowest so far | from part to part |",
        "|---|---|---|---|",
    ]
    for name, runs in found.items():
        curves = np.array([run.curve for run in runs.values()])
        settled = curves[:, BEGUN:]
        rises = (settled - np.minimum.accumulate(settled, axis=1)).max(1)
        steps = np.diff(settled, axis=1).std(1, ddof=1)
        said = f"{_mean(rises)} (most {rises.max():.2f}) | {_mean(steps)}"
        lines.append(f"| {CONTENDERS[name].title} | {len(curves)} | {said} |")
    return "\n".join(lines)


def _mean(values: np.ndarray) -> str:
    return interval(values) if len(values) > 1 else f"{values[0]:.3f}"
