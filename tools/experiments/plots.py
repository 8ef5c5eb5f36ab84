"""The figures: panels of lines, small enough to keep beside the findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tools.experiments.training.logs import Log
from tools.experiments.training.methods import Run

SMOOTHED = 100
"""Points of a training curve, each the mean of its part of the steps."""

COARSE, COLORS = 80, 64
"""Dots per inch, and colours of the palette."""


@dataclass(frozen=True)
class Line:
    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    color: str | None = None
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """Lines with a common legend; `axes` are properties of matplotlib's axes, such as title,
    xlabel, xscale.
    """

    lines: Sequence[Line]
    axes: dict[str, Any] = field(default_factory=dict[str, Any])


def draw(panels: Sequence[Panel], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, places = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), 4), squeeze=False, layout="constrained"
    )
    for panel, place in zip(panels, places[0], strict=True):
        for line in panel.lines:
            place.plot(
                line.x,
                line.y,
                line.style,
                color=line.color,
                label=line.label or None,
                linewidth=1.2,
            )
        place.set(**panel.axes)
        if "xticks" in panel.axes:
            place.minorticks_off()
        if any(line.label for line in panel.lines):
            place.legend(fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=COARSE)
    plt.close(figure)
    Image.open(file).quantize(COLORS).save(file, optimize=True)


def training_curve(log: Log, **look: Any) -> Line:
    """Training loss against samples."""
    samples, losses = (np.asarray(column, float) for column in log.column("loss"))
    parts = [np.array_split(values, min(SMOOTHED, len(values))) for values in (samples, losses)]
    x, y = ([float(part.mean()) for part in values] for values in parts)
    return Line(x, y, **look)


def held_out_curve(log: Log, **look: Any) -> Line:
    """Held-out loss against samples."""
    return Line(*log.column("eval_loss"), **look)


def rate_line(logs: Mapping[Run, Log], *look: str) -> Line:
    """Held-out loss at the end against the learning rate; runs that diverged are left out."""
    runs = [run for run, log in logs.items() if not log.diverged]
    return Line([run.learning_rate for run in runs], [logs[run].final for run in runs], *look)


def rate_axes(lines: Sequence[Line]) -> dict[str, Any]:
    """For lines of `rate_line`: 1.5 nats from the best, and the learning rates for ticks."""
    best = min(y for line in lines for y in line.y)
    rates = sorted({x for line in lines for x in line.x})
    words = {"title": "seed 0", "xlabel": "learning rate", "ylabel": "held-out loss at the end"}
    ticks = {"xscale": "log", "xticks": rates, "xticklabels": [f"{rate:.2g}" for rate in rates]}
    return words | ticks | {"ylim": (best - 0.05, best + 1.5)}


def loss_axes(title: str, logs: Sequence[Log]) -> dict[str, Any]:
    """From just below the lowest loss to that after the first steps, on logarithmic axes."""
    lowest = min(min(log.column("eval_loss")[1]) for log in logs)
    return {
        "title": title,
        "xlabel": "samples",
        "ylabel": "loss",
        "xscale": "log",
        "ylim": (0.95 * lowest, 4.5),
    }
