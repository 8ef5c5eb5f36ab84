"""Each sweep, and the synthetic problem: losses, and differences from the usual or from Adam."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.intervals import half_width, interval
from tools.experiments.paired.claims import BySeed, Difference
from tools.experiments.paired.records import Record
from tools.experiments.paired.sweeps import Place, against_first, against_usual, found, told
from tools.experiments.paired.synthetic import by_method
from tools.experiments.paired.variants import SWEEPS, Sweep
from tools.experiments.redraw import look
from tools.experiments.training.methods import METHODS

SMALL = 0.05
"""Nats a byte: about what methods differ by."""
HEAD = ("", "", "learning rate", "seeds", "held-out loss", "less the usual", "less the first line")


def draw_all(records: Sequence[Record], file: str, out: Path, kind: str) -> None:
    """A figure for each sweep of a file of which fresh seeds can be compared."""
    for name, sweep in SWEEPS.items():
        if sweep.file == file and (each := _compared(records, sweep)):
            _draw(sweep, each, out / f"sweep_{name}.{kind}")


def _compared(records: Sequence[Record], sweep: Sweep) -> dict[Place, BySeed]:
    """What has been found, if it is more than one line at one level."""
    each = found(records, sweep)
    return each if len(each) > 1 else {}


def table(records: Sequence[Record], name: str) -> str:
    """Markdown: a row for each line and level; a star where Holm tells a difference from none."""
    sweep = SWEEPS[name]
    each = _compared(records, sweep)
    if not each:
        return f"(no runs of `{name}` to compare yet)"
    kinds = [against_usual(each, sweep), against_first(each, sweep)]
    columns = [
        {place: _said(one, told(kind)[place]) for place, one in kind.items()} for kind in kinds
    ]
    head = [
        " | ".join(("| line", sweep.title or "level", *HEAD[2:])) + " |",
        "|---" * len(HEAD) + "|",
    ]
    rows = [
        _row(place, runs, [column.get(place, "") for column in columns])
        for place, runs in each.items()
    ]
    return "\n".join([*head, *rows])


def _row(place: Place, runs: BySeed, less: Sequence[str]) -> str:
    losses = [run.loss for run in runs.values()]
    kept = [loss for loss in losses if np.isfinite(loss)]
    said = interval(kept) if len(kept) > 1 else ", ".join(f"{loss:.3f}" for loss in kept)
    rate = next(iter(runs.values())).learning_rate
    seeds = f"{len(kept)}" + (
        f", and {len(losses) - len(kept)} diverged" * (len(kept) < len(losses))
    )
    return f"| {' | '.join((*place, f'{rate:.3g}', seeds, said, *less))} |"


def _said(difference: Difference, is_told: bool) -> str:
    return f"{difference}{' *' if is_told else ''}"


def _draw(sweep: Sweep, each: Mapping[Place, BySeed], file: Path) -> None:
    figure, ((losses, usual, first),) = look.panels(1, 3)
    for number, line in enumerate(sweep.lines):
        own = {level: runs for (title, level), runs in each.items() if title == line}
        _points(losses, sweep, line, number, {level: _losses(runs) for level, runs in own.items()})
    title = next(iter(sweep.lines))
    _differences(usual, sweep, against_usual(each, sweep))
    _differences(first, sweep, against_first(each, sweep))
    losses.set(title="each seed, and their mean", ylabel="held-out loss, nats a byte")
    usual.set(title=f"less the same line at {sweep.usual}, 95 %", ylabel="nats a byte")
    first.set(title=f"less {title} at the same level, 95 %", ylabel="nats a byte")
    for place in (losses, usual, first):
        turned = {"rotation": 20, "ha": "right"} if max(map(len, sweep.levels)) > 10 else {}
        place.set_xticks(range(len(sweep.levels)), sweep.levels, **turned)
        place.set(xlabel=sweep.title, xlim=(-0.5, len(sweep.levels) - 0.5))
    figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    look.save(figure, file)


def _losses(runs: BySeed) -> np.ndarray:
    return np.array([run.loss for run in runs.values() if np.isfinite(run.loss)])


def _points(
    place: Any, sweep: Sweep, line: str, number: int, by_level: Mapping[str, np.ndarray]
) -> None:
    """Each seed a point, and a line through the means."""
    shown = {level: each for level, each in by_level.items() if len(each)}
    x = np.array([sweep.levels.index(level) for level in shown]) + _shift(sweep, number)
    for where, each in zip(x, shown.values(), strict=True):
        place.plot([where] * len(each), each, ".", color=f"C{number}", alpha=0.5, markersize=4)
    means = [each.mean() for each in shown.values()]
    place.plot(x, means, "_-", color=f"C{number}", linewidth=1, markersize=9, label=line)


def _differences(place: Any, sweep: Sweep, found: Mapping[Place, Difference]) -> None:
    """Filled where Holm tells a difference from none."""
    answers = told(found)
    for (line, level), one in found.items():
        number = list(sweep.lines).index(line)
        x = sweep.levels.index(level) + _shift(sweep, number)
        filled = {} if answers[line, level] else {"markerfacecolor": "white"}
        place.errorbar(
            x, one.mean, one.half_width, fmt="o", color=f"C{number}", capsize=3, **filled
        )
    place.axhline(0, color="black", linewidth=0.6)
    # A level where training fails would hide the others.
    if max((abs(one.mean) for one in found.values()), default=0) > 10 * SMALL:
        place.set_yscale("symlog", linthresh=SMALL)


def _shift(sweep: Sweep, number: int) -> float:
    """Lines beside one another."""
    return 0.12 * (number - (len(sweep.lines) - 1) / 2)


def draw_synthetic(records: Sequence[Record], file: Path) -> None:
    """A point for each seed; differences with 95 % intervals, which are smaller than their marks
    where none is seen.
    """
    _, found = by_method(records)
    figure, ((losses, differences),) = look.panels(1, 2)
    titles = [METHODS[method].title for method in found]
    for place, (method, each) in enumerate(found.items()):
        spread = place + np.linspace(-0.2, 0.2, len(each))
        losses.plot(spread, each, ".", color=f"C{place}", markersize=4)
        if method != "adam":
            less = np.subtract(each, found["adam"])
            differences.errorbar(place, less.mean(), half_width(less), fmt="o", color=f"C{place}")
    differences.axhline(0, color="black", linewidth=0.6)
    losses.set(title="each seed", ylabel="excess loss, nats", yscale="log")
    differences.set(title="less that of Adam, 95 %", ylabel="nats")
    # MicroAdam's is a thousand times smaller than the largest.
    differences.set_yscale("symlog", linthresh=1e-3)
    differences.set_ylim(-1e-3, 1)
    for place in (losses, differences):
        place.set_xticks(range(len(titles)), titles, rotation=30, ha="right")
    look.save(figure, file)
