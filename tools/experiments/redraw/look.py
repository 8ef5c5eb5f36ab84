"""What the figures share: their panels, curves with bands, and SVG that is the same each time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from tools.experiments.intervals import half_width

mpl.use("Agg")
# Text as text keeps files small; the salt makes the ids in them, and so the files, the same.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "findings", "font.size": 9})

SETTLED = 8
"""Of a run's 64 parts, those before which all are still falling, and would hide the rest."""


def panels(rows: int, columns: int, **shared: Any) -> tuple[Any, Any]:
    """A figure, and its places [rows, columns]."""
    from matplotlib import pyplot as plt

    size = (4.2 * columns, 3.3 * rows)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **shared)


def save(figure: Any, file: Path) -> None:
    """SVG, or at 150 dots an inch what the file's name says."""
    from matplotlib import pyplot as plt

    file.parent.mkdir(parents=True, exist_ok=True)
    undated = {"metadata": {"Date": None}} if file.suffix == ".svg" else {}
    figure.savefig(file, dpi=150, **undated)
    plt.close(figure)


Curves = Sequence[Sequence[float] | np.ndarray]


def curve(place: Any, curves: Curves, *, band: bool = True, **looks: Any) -> None:
    """The mean of some seeds' curves along the run, and its 95 % band from three seeds on."""
    each = np.array(curves)
    share = (np.arange(each.shape[1]) + 0.5) / each.shape[1]
    (line,) = place.plot(share, each.mean(0), linewidth=1.2, **looks)
    # Of two seeds Student's factor is 12.7: a band that would only hide the curves.
    if band and len(each) > 2:
        half = np.array([half_width(column) for column in each.T])
        low, high = each.mean(0) - half, each.mean(0) + half
        place.fill_between(share, low, high, color=line.get_color(), alpha=0.25, linewidth=0)


def seeds(curves: Curves) -> str:
    """How many, in words."""
    return "1 seed" if len(curves) == 1 else f"{len(curves)} seeds"


def fit(place: Any, curves: Curves) -> None:
    """Limits that show what is settled, of each seed; the first steps would hide it."""
    if curves:
        settled = np.concatenate([np.asarray(one)[SETTLED:] for one in curves])
        low, high = np.nanmin(settled), np.nanmax(settled)
        room = 0.05 * (high - low) or 0.01
        place.set_ylim(low - room, high + room)


def rate_ticks(place: Any, rates: Sequence[float]) -> None:
    """A logarithmic axis of learning rates with every second one written."""
    place.set(xscale="log", xlabel="learning rate")
    shown = sorted(set(rates))[::2]
    place.set_xticks(shown, [f"{rate:.2g}" for rate in shown])
    place.minorticks_off()
