"""Live memory along a program as a picture: block characters for the terminal, or a PNG file."""

import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hlo_surgery.targets.scheduled.live_memory import Step
from hlo_surgery.whole_files import write_atomically

BLOCKS = " ▁▂▃▄▅▆▇█"
ROWS = 8


def blocks(steps: Sequence[Step], width: int, top: int) -> list[str]:
    """Rows of characters, highest first; each column is the most live in its part of the program.

    >>> blocks([Step("a", 8), Step("b", 16), Step("c", 4)], width=3, top=16)[3:7]
    [' █ ', '██ ', '██ ', '███']
    """
    width = min(width, len(steps))
    edges = [len(steps) * column // width for column in range(width + 1)]
    highest = [max(step.bytes for step in steps[a:b]) for a, b in pairwise(edges)]
    eighths = [round(8 * ROWS * live / max(top, 1)) for live in highest]
    return [
        "".join(BLOCKS[min(8, max(0, e - 8 * row))] for e in eighths)
        for row in reversed(range(ROWS))
    ]


def check_plots() -> None:
    """Raises ValueError where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a plot needs matplotlib, which is not installed: pip install '.[plots]'")


def write_png(path: str, staircases: Mapping[str, Sequence[Step]], target: str) -> None:
    """One line a program. Raises ValueError where matplotlib is not installed."""
    check_plots()
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, steps in staircases.items():
        axes.plot([step.bytes / 1e6 for step in steps], drawstyle="steps-post", label=name)
    axes.set(
        xlabel="instruction, in the order of the program", ylabel="live memory, MB", title=target
    )
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_atomically(Path(path), picture.getvalue())
