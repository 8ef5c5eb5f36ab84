"""The synthetic problem's losses at the end, and their differences from Adam's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tools.experiments.intervals import half_width
from tools.experiments.paired.records import Record
from tools.experiments.paired.synthetic import by_method
from tools.experiments.redraw import look
from tools.experiments.training.methods import METHODS


def draw(records: Sequence[Record], file: Path) -> None:
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
