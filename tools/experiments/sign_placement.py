"""Where to place the sign: SignEMA, SignSGD and MicroSignSGD at their best of the paper's rates.

python -m tools.experiments.sign_placement [--out build/experiments] [--size small] [--grid -2 -1 0
1] [--seeds 3]

Writes sign_placement.png; the best runs of seed 0 are repeated with the other seeds.
"""

from collections.abc import Sequence

from tools.experiments.plots import (
    Panel,
    draw,
    held_out_curve,
    loss_axes,
    rate_axes,
    rate_line,
    training_curve,
)
from tools.experiments.runs import Setting, add_grid, rates_of, report, setting, sweep_best
from tools.experiments.training.logs import Log
from tools.experiments.training.methods import METHODS, SIGNS, Run

GRIDS = {
    "paper": range(-6, 2),
    # Higher: fewer steps, so more weight decay in each, want larger ones.
    "small": range(-1, 8),
}


def sweep(where: Setting, rates: Sequence[float]) -> dict[str, list[Run]]:
    """The runs of each method, by learning rate."""
    return {
        method: [Run(where.size, method, rate, where.batch_size) for rate in rates]
        for method in SIGNS
    }


def figure(
    where: Setting, swept: dict[str, list[Run]], found: dict[str, list[Run]], logs: dict[Run, Log]
) -> None:
    colors = {method: f"C{i}" for i, method in enumerate(swept)}
    curves = [
        training_curve(logs[run], label=run.title if run.seed == 0 else "", color=colors[method])
        for method, runs in found.items()
        for run in runs
    ]
    held_out = [
        held_out_curve(logs[runs[0]], color=colors[method], label=METHODS[method].title, style=".-")
        for method, runs in found.items()
    ]
    losses = [
        rate_line({run: logs[run] for run in runs}, METHODS[method].title, colors[method], "o-")
        for method, runs in swept.items()
    ]
    everything = [logs[run] for runs in found.values() for run in runs]
    panels = [
        Panel(curves, loss_axes("training loss at the best learning rates, each seed", everything)),
        Panel(held_out, loss_axes("held-out loss, seed 0", everything)),
        Panel(losses, rate_axes(losses)),
    ]
    draw(panels, where.out / "sign_placement.png")


def main() -> None:
    where, options = setting(__doc__, seeds=3, extra=add_grid)
    swept = sweep(where, rates_of(options.grid or GRIDS[where.size.name]))
    found, logs = sweep_best(swept, where)
    report(found.values(), logs)
    figure(where, swept, found, logs)


if __name__ == "__main__":
    main()
