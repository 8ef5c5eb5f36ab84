"""Loss against samples over batch sizes, at rates by each method's rule: lr ~ sqrt(B) or lr ~ B.

python -m tools.experiments.batch_scaling [--out build/experiments] [--size small] [--factor 0.25]

Writes batch_scaling.png, or batch_scaling_0.25.png. The learning rates are the best, or the factor
times the best, at the batch size that the other experiments have.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import hlo_surgery.optimizers as ho
from tools.experiments.plots import Panel, draw, loss_axes, training_curve
from tools.experiments.runs import BATCH_SIZES, Setting, report, run_all, setting
from tools.experiments.training.logs import Log
from tools.experiments.training.methods import ADAMS, CLIP_NORMS, METHODS, RATES, Run

SCALED = {"small": (4, 8, 16, 32, 64), "paper": (8, 16, 32, 64, 128, 256)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-sizes", type=int, nargs="+")
    parser.add_argument("--factor", type=float, default=1.0, help="of all learning rates")


def scaled(
    where: Setting, method: str, batch_size: int, factor: float = 1.0, tracks_moments: bool = False
) -> Run:
    """The run with the method's learning rate for this batch size; MicroAdamMSQ needs clipping."""
    name = where.size.name
    rate = ho.batch_size_rule(
        RATES[name][method], BATCH_SIZES[name], batch_size, METHODS[method].rule
    )
    clip_norm = CLIP_NORMS[name] if method == "micro_adam_msq" else None
    return Run(
        where.size,
        method,
        factor * rate,
        batch_size,
        clip_norm=clip_norm,
        tracks_moments=tracks_moments,
    )


def figure(file: Path, found: dict[str, list[Run]], logs: dict[Run, Log]) -> None:
    axes = loss_axes("", list(logs.values()))
    panels: list[Panel] = []
    for method, runs in found.items():
        rule = {"sqrt": "lr ~ sqrt(B)", "linear": "lr ~ B"}[METHODS[method].rule]
        lines = [
            training_curve(logs[run], label=f"B = {run.batch_size}", color=f"C{i}")
            for i, run in enumerate(runs)
        ]
        panels.append(Panel(lines, axes | {"title": f"{METHODS[method].title}, {rule}"}))
    draw(panels, file)


def main() -> None:
    where, options = setting(__doc__, seeds=1, extra=add_options)
    batch_sizes: Sequence[int] = options.batch_sizes or SCALED[where.size.name]
    found = {
        method: [scaled(where, method, size, options.factor) for size in batch_sizes]
        for method in ADAMS
    }
    logs = run_all((run for runs in found.values() for run in runs), where)
    report([[run] for runs in found.values() for run in runs], logs)
    suffix = f"_{options.factor:g}" if options.factor != 1 else ""
    figure(where.out / f"batch_scaling{suffix}.png", found, logs)


if __name__ == "__main__":
    main()
