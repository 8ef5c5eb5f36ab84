"""mu**2 and sigma**2 along training and over batch sizes, and what sign does to the SNR.

python -m tools.experiments.moments [--out build/experiments] [--size small] [--batch-sizes 4 16 64]
[--examples 2048]

Writes moments.png and sign_snr.png. The runs are those of batch_scaling.py, with their moments
logged.
"""

import argparse
from collections.abc import Sequence
from statistics import median

from tools.experiments.batch_scaling import scaled
from tools.experiments.plots import Line, Panel, draw
from tools.experiments.runs import BATCH_SIZES, Setting, run_all, setting
from tools.experiments.sign_snr import BINS, Halves, binned, measure, normal_theory, opposed
from tools.experiments.training import model
from tools.experiments.training.logs import Log, restore
from tools.experiments.training.loop import start
from tools.experiments.training.methods import METHODS, Run

BATCHES = {"small": (4, 16, 64), "paper": (16, 64, 256)}
RATIO = "mu**2 / sigma_eff**2"
SAMPLES = {"xlabel": "samples", "xscale": "log"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="of Adam's runs")
    parser.add_argument(
        "--examples", type=int, default=2048, help="in each half of the SNR's measurement"
    )


def effective(run: Run) -> int:
    """B_eff: sigma_eff**2 = sigma**2 / B_eff is what the preconditioner has of the variance."""
    return run.batch_size if run.method == "adam" else 1


def ratio_line(
    run: Run, log: Log, color: str = "C0", kind: str = "ratio_of_means", style: str = "-"
) -> Line:
    """mu**2 / sigma_eff**2 along training; it is logged for B_eff = B."""
    samples, ratios = log.column(kind)
    factor = effective(run) / run.batch_size
    label = f"{METHODS[run.method].title}, B = {run.batch_size}" if kind == "ratio_of_means" else ""
    return Line(samples, [factor * r for r in ratios], label, color, style)


def compared(runs: Sequence[Run], logs: dict[Run, Log]) -> list[Panel]:
    """Adam and MicroAdam at one batch size."""
    look = {"mean_squared_mean": ("mu**2", "-"), "variance_mean": ("sigma**2", "--")}
    lines = [
        Line(*logs[run].column(kind), f"{METHODS[run.method].title}, {name}", f"C{i}", style)
        for i, run in enumerate(runs)
        for kind, (name, style) in look.items()
    ]
    means = {"title": "means of all parameters", "yscale": "log"}
    return [Panel(lines, SAMPLES | means), _ratios(runs, logs)]


def over_batch_sizes(runs: Sequence[Run], logs: dict[Run, Log]) -> list[Panel]:
    layers = [_layer_line(name, runs, logs) for name in logs[runs[0]].column("ratio")[1][0]]
    sizes = [run.batch_size for run in runs]
    axes = {"title": "each layer's median, over training", "xlabel": "batch size", "ylabel": RATIO}
    scales = {"xscale": "log", "xticks": sizes, "xticklabels": sizes, "yscale": "log"}
    return [_ratios(runs, logs), Panel(layers, axes | scales)]


def _ratios(runs: Sequence[Run], logs: dict[Run, Log]) -> Panel:
    looks = {"ratio_of_means": "-", "ratio_median": ":"}
    lines = [
        ratio_line(run, logs[run], f"C{i}", *look)
        for i, run in enumerate(runs)
        for look in looks.items()
    ]
    axes = {
        "title": "ratio of means, and (dotted) median ratio",
        "ylabel": RATIO,
        "yscale": "log",
        "ylim": (1e-3, 30),
    }
    return Panel(lines, SAMPLES | axes)


def _layer_line(name: str, runs: Sequence[Run], logs: dict[Run, Log]) -> Line:
    ratios = [median(layers[name] for layers in logs[run].column("ratio")[1]) for run in runs]
    return Line([run.batch_size for run in runs], ratios, style=".-")


def snr_panels(run: Run, where: Setting, examples: int) -> list[Panel]:
    """Before the first step and after the last; prints how often mean sign(g) opposes mean g."""
    before = start(run)
    _, after = restore(where.out / "runs" / run.name, before)
    panels: list[Panel] = []
    print("\n| | of | with mean g surely not zero | mean sign(g) opposed |\n|---|---|---|---|")
    for title, (params, _) in (
        ("initial parameters", before),
        ("parameters trained by Adam", after),
    ):
        measured = measure(model.loss, params, where.text, examples)
        for part, halves in measured.items():
            count, share = opposed(halves)
            print(f"| {title} | {part} | {count} of {halves.first.g.size} | {share:.1%} |")
        panels.append(_snr_panel(title, measured))
    return panels


def _snr_panel(title: str, measured: dict[str, Halves]) -> Panel:
    lines = [Line(*binned(halves), part, style=".-") for part, halves in measured.items()]
    theory = Line(BINS, normal_theory(BINS), "normal, theory", "black", "--")
    axes = {
        "title": title,
        "xlabel": "SNR of g",
        "ylabel": "SNR of sign(g)",
        "xscale": "log",
        "yscale": "log",
    }
    return Panel([*lines, theory, Line(BINS, BINS, "equal", "grey", ":")], axes)


def report(runs: Sequence[Run], logs: dict[Run, Log]) -> None:
    """A table in Markdown of the ratio of means along training."""
    shares = (0.01, 0.05, 0.25, 0.5, 1.0)
    print("| run | " + " | ".join(f"{share:.0%}" for share in shares) + " |\n" + "|---" * 6 + "|")
    for run in runs:
        line = ratio_line(run, logs[run])
        at = [
            min(range(len(line.x)), key=lambda i: abs(line.x[i] - share * line.x[-1]))
            for share in shares
        ]
        print(f"| {line.label} | " + " | ".join(f"{line.y[i]:.2g}" for i in at) + " |")


def main() -> None:
    where, options = setting(__doc__, seeds=1, extra=add_options)
    batch_sizes: Sequence[int] = options.batch_sizes or BATCHES[where.size.name]
    adams = [scaled(where, "adam", size, tracks_moments=True) for size in batch_sizes]
    usual = BATCH_SIZES[where.size.name]
    both = [scaled(where, method, usual, tracks_moments=True) for method in ("adam", "micro_adam")]
    logs = run_all([*adams, *both], where)
    report(list(logs), logs)
    draw([*compared(both, logs), *over_batch_sizes(adams, logs)], where.out / "moments.png")
    draw(snr_panels(both[0], where, options.examples), where.out / "sign_snr.png")


if __name__ == "__main__":
    main()
