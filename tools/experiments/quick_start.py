"""A small language model of Python's own sources by Adam and by MicroAdam, and both curves drawn.

python -m tools.experiments.quick_start [--out build/experiments]

Writes quick_start.png. What differs between the two runs is the line of `training/methods.py` that
makes the optimizer.
"""

from tools.experiments.plots import Panel, draw, held_out_curve, loss_axes
from tools.experiments.runs import report, run_all, setting
from tools.experiments.training.methods import METHODS, RATES, Run


def main() -> None:
    where, _ = setting(__doc__, seeds=1)
    runs = [
        Run(where.size, method, RATES[where.size.name][method], where.batch_size)
        for method in ("adam", "micro_adam")
    ]
    logs = run_all(runs, where)
    report([[run] for run in runs], logs)
    lines = [
        held_out_curve(log, label=METHODS[run.method].title, style="o-")
        for run, log in logs.items()
    ]
    figure = where.out / "quick_start.png"
    draw([Panel(lines, loss_axes("held-out loss", list(logs.values())))], figure)
    print(f"curves: {figure}")


if __name__ == "__main__":
    main()
