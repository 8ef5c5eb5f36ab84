"""Adam and its Micro variants, with and without clipping, each at its best learning rate.

python -m tools.experiments.adam_family [--out build/experiments] [--size small] [--grid 2 3 4 5 6]
[--seeds 2]

Writes adam_family.png; the best runs of seed 0 are repeated with the other seeds.
"""

import argparse
from collections.abc import Sequence

from tools.experiments.plots import Panel, draw, loss_axes, rate_axes, rate_line, training_curve
from tools.experiments.runs import Setting, add_grid, rates_of, report, setting, sweep_best
from tools.experiments.training.logs import Log
from tools.experiments.training.methods import ADAMS, CLIP_NORMS, METHODS, Run

GRIDS = {"small": (2, 3, 4, 5, 6), "paper": (-6, -4, -2, 0)}
Kind = tuple[str, float | None]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_grid(parser)
    parser.add_argument("--clip", type=float, help="the gradient's global norm at most")


def sweep(where: Setting, rates: Sequence[float], clip: float) -> dict[Kind, list[Run]]:
    """The runs of each method, with and without clipping, by learning rate."""
    return {
        (method, norm): [
            Run(where.size, method, rate, where.batch_size, clip_norm=norm) for rate in rates
        ]
        for method in ADAMS
        for norm in (None, clip)
    }


def figure(
    where: Setting, swept: dict[Kind, list[Run]], found: dict[Kind, list[Run]], logs: dict[Run, Log]
) -> None:
    colors = {method: f"C{i}" for i, method in enumerate(ADAMS)}
    everything = [logs[run] for runs in found.values() for run in runs]
    panels: list[Panel] = []
    for title, clipped in (("without clipping", False), ("clipped", True)):
        lines = [
            training_curve(
                logs[run],
                label=METHODS[method].title if run.seed == 0 else "",
                color=colors[method],
            )
            for (method, norm), runs in found.items()
            if bool(norm) == clipped
            for run in runs
        ]
        panels.append(Panel(lines, loss_axes(f"training loss {title}, each seed", everything)))
    styles = {kind: (colors[kind[0]], "o--" if kind[1] else "o-") for kind in swept}
    losses = [
        rate_line({r: logs[r] for r in runs}, runs[0].title, *styles[kind])
        for kind, runs in swept.items()
    ]
    draw([*panels, Panel(losses, rate_axes(losses))], where.out / "adam_family.png")


def main() -> None:
    where, options = setting(__doc__, seeds=2, extra=add_options)
    name = where.size.name
    swept = sweep(where, rates_of(options.grid or GRIDS[name]), options.clip or CLIP_NORMS[name])
    found, logs = sweep_best(swept, where)
    report(found.values(), logs)
    figure(where, swept, found, logs)


if __name__ == "__main__":
    main()
