"""The noise scale of each kind of layer along training, and over that of all layers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.intervals import half_width, interval
from tools.experiments.paired.records import Row
from tools.experiments.redraw import look

ALL = "all"


def scales(rows: Sequence[Row], kind: str) -> dict[float, np.ndarray]:
    """By share of the run, those of the seeds, in the same order for all kinds."""
    own = sorted((row for row in rows if row["kind"] == kind), key=lambda row: int(row["seed"]))
    shares = sorted({float(row["share"]) for row in own})
    return {
        share: np.array([float(row["noise_scale"]) for row in own if float(row["share"]) == share])
        for share in shares
    }


def kinds(rows: Sequence[Row]) -> list[str]:
    """In the file's order, of which all layers together are the last."""
    return list(dict.fromkeys(row["kind"] for row in rows))


def table(rows: Sequence[Row]) -> str:
    """Markdown: examples, the mean over the seeds with its 95 % interval."""
    if not rows:
        return "(not run yet)"
    names = kinds(rows)
    lines = [f"| of the run | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    columns = [scales(rows, kind) for kind in names]
    for share in columns[0]:
        cells = [_said(column[share]) for column in columns]
        lines.append(f"| {share:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _said(values: np.ndarray) -> str:
    return interval(values, 0) if len(values) > 1 else f"{values[0]:.0f}"


def draw(rows: Sequence[Row], file: Path) -> None:
    """Each seed's as it is, and each kind's over all layers' of that seed: means of logarithms,
    with 95 % intervals.
    """
    figure, ((each, over),) = look.panels(1, 2, sharex=True)
    whole = scales(rows, ALL)
    for number, kind in enumerate(kinds(rows)):
        color = "black" if kind == ALL else f"C{number}"
        own = scales(rows, kind)
        _lines(each, own, number, color, kind)
        if kind != ALL:
            _lines(over, {share: own[share] / whole[share] for share in own}, number, color, kind)
    each.set(title="gradient noise scale, 95 % over seeds", ylabel="examples")
    over.set(title="over that of all layers, seed by seed", ylabel="ratio")
    over.axhline(1, color="black", linewidth=0.6)
    each.legend(fontsize="small")
    figure.supxlabel("share of the run")
    look.save(figure, file)


def _lines(
    place: Any, by_share: dict[float, np.ndarray], number: int, color: str, kind: str
) -> None:
    """Of estimates that are positive, as the logarithm asks."""
    kept = {share: np.log(x[x > 0]) for share, x in by_share.items() if (x > 0).sum() > 1}
    shares = np.array(list(kept)) + 0.006 * (number - 2)
    means = np.array([x.mean() for x in kept.values()])
    widths = np.array([half_width(x) for x in kept.values()])
    low, high = np.exp(means) - np.exp(means - widths), np.exp(means + widths) - np.exp(means)
    place.errorbar(
        shares,
        np.exp(means),
        [low, high],
        fmt="o-",
        color=color,
        label=kind,
        capsize=2,
        markersize=3,
        linewidth=1,
    )
    place.set_yscale("log")
