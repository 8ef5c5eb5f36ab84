"""What the experiments share: their options, and training many runs with progress bars."""

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tools.experiments.training import data
from tools.experiments.training.data import Text
from tools.experiments.training.logs import Log
from tools.experiments.training.loop import train
from tools.experiments.training.methods import Run
from tools.experiments.training.model import SIZES, Size

OUT = Path("build/experiments")
BATCH_SIZES = {"small": 16, "tiny": 16, "paper": 64}
"""Of the experiments that do not vary it; with 16 a small run has enough steps."""


@dataclass(frozen=True)
class Setting:
    """Where an experiment runs, at which size and batch size, on which text, how many seeds."""

    size: Size
    batch_size: int
    seeds: int
    text: Text
    out: Path


def setting(
    document: str | None, seeds: int, extra: Any = None, arguments: Sequence[str] | None = None
) -> tuple[Setting, Any]:
    """From the command line; `extra` adds options of the experiment's own to the parser."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="runs, figures; runs that are there already go on"
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch-size", type=int, help="of the runs that do not vary it")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument(
        "--text",
        type=Path,
        help="directory of .txt, .jsonl or .npy files; else the pinned sources of Python",
    )
    if extra:
        extra(parser)
    options = parser.parse_args(arguments)
    size = SIZES[options.size]
    text = data.load(options.text, size.L, size.V)
    batch_size = options.batch_size or BATCH_SIZES[size.name]
    return Setting(size, batch_size, options.seeds, text, options.out), options


def run_all(runs: Iterable[Run], where: Setting) -> dict[Run, Log]:
    """Each run's log; those that are done already are only read."""
    distinct = list(dict.fromkeys(runs))
    console = Console()
    with _progress(console) as progress:
        overall = progress.add_task("runs", total=len(distinct), loss="")
        logs: dict[Run, Log] = {}
        for run in distinct:
            logs[run] = _run(run, where, progress, console)
            progress.advance(overall)
    return logs


def _run(run: Run, where: Setting, progress: Progress, console: Console) -> Log:
    task, began = progress.add_task(run.name, total=run.steps, loss=""), time.perf_counter()

    def on_step(number: int, loss: float) -> None:
        progress.update(task, completed=number, loss=f"loss {loss:.3f}")

    log = train(run, where.text, where.out / "runs", on_step)
    progress.remove_task(task)
    ending = "diverged" if log.diverged else f"held-out loss {log.final:.4f}"
    console.print(
        f"{run.name}: {ending}, {time.perf_counter() - began:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    return log


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    return Progress(*columns, TimeRemainingColumn(), console=console)
