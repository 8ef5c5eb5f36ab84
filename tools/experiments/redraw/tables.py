"""The tables of the language model's runs, in Markdown."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.ndimage import median_filter

from tools.experiments.intervals import interval
from tools.experiments.paired.claims import CLAIMS, BySeed, converged, differences, holm, pairs
from tools.experiments.paired.records import Record
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.redraw.look import SETTLED

RUNNING = 9
"""Parts, of a running median: an eighth of the run."""


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
        both = f"{CONTENDERS[a].title} | {CONTENDERS[b].title}"
        lines.append(
            f"| {both} | {seeds_of(found, a, b)} | {difference} | {difference.p:.2g} | {answer} |"
        )
    return "\n".join(lines)


def seeds_of(found: Mapping[str, BySeed], ours: str, theirs: str) -> str:
    """How many pairs, and how many of them are left out since one of the runs diverged."""
    both, left = pairs(found, ours, theirs), converged(pairs(found, ours, theirs))
    diverged = len(both) - len(left)
    return f"{len(left)}, and {diverged} diverged" if diverged else f"{len(left)}"


def steadiness(found: Mapping[str, BySeed]) -> str:
    """How noisy a curve of training losses is, and how high its highest spike.

    All contenders of a seed see the same batches, whose ups and downs are most of what a curve has:
    the median of the contenders is taken from each. What is left is held against its own running
    median, after the first eighth of the run.
    """
    lines = ["| contender | seeds | highest spike | deviation |", "|---|---|---|---|"]
    own = residuals(found)
    for name, left in own.items():
        spikes, noise = left.max(1), left.std(1, ddof=1)
        said = f"{_mean(spikes)} (most {spikes.max():.3f}) | {_mean(noise)}"
        lines.append(f"| {CONTENDERS[name].title} | {len(left)} | {said} |")
    return "\n".join(lines)


def residuals(found: Mapping[str, BySeed]) -> dict[str, np.ndarray]:
    """[seeds, parts] by contender, of the seeds that all have."""
    seeds = sorted(set[int].intersection(*(set(runs) for runs in found.values())))
    if not seeds:
        return {}
    curves = {name: np.array([runs[seed].curve for seed in seeds]) for name, runs in found.items()}
    common = np.median(list(curves.values()), axis=0)
    own = {name: each - common for name, each in curves.items()}
    return {
        name: (each - median_filter(each, (1, RUNNING)))[:, SETTLED:] for name, each in own.items()
    }


def _mean(values: np.ndarray) -> str:
    return interval(values) if len(values) > 1 else f"{values[0]:.3f}"
