"""mu**2 and sigma**2 along training and over batch sizes, and what sign does to the SNR.

python -m tools.experiments.moments [--out build/experiments] [--size small] [--batch-sizes 4 16 64]
[--examples 2048] [--csv FOLDER]

Writes moments.csv, sign_snr.csv and sign_opposed.csv, of which `tools.experiments.redraw` draws.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import hlo_surgery.optimizers as ho
from tools.experiments.paired.records import MEASURED, commit, write_rows
from tools.experiments.runs import BATCH_SIZES, Setting, run_all, setting
from tools.experiments.sign_snr import binned, measure, opposed
from tools.experiments.training import model
from tools.experiments.training.logs import Log, restore
from tools.experiments.training.loop import start
from tools.experiments.training.methods import METHODS, RATES, Run

BATCHES = {"small": (4, 16, 64), "tiny": (4, 16, 64), "paper": (16, 64, 256)}
OVERALL = ("mean_squared_mean", "variance_mean", "ratio_of_means", "ratio_median")
"""Of all parameters; "ratio" has each layer's median."""
TIMES = ("initial", "trained by Adam")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="of Adam's runs")
    parser.add_argument(
        "--examples", type=int, default=2048, help="in each half of the SNR's measurement"
    )
    parser.add_argument("--csv", type=Path, default=MEASURED, help="the folder of the CSV files")


def run_at(where: Setting, method: str, batch_size: int) -> Run:
    """The run with the method's learning rate by its rule for this batch size."""
    name = where.size.name
    usual, rule = BATCH_SIZES[name], METHODS[method].rule
    rate = ho.batch_size_rule(RATES[name][method], usual, batch_size, rule)
    return Run(where.size, method, rate, batch_size, tracks_moments=True)


def moment_rows(run: Run, log: Log) -> list[tuple[Any, ...]]:
    """Method, batch size, samples, kind, layer and value. Ratios are for B_eff = B."""
    rows: list[tuple[Any, ...]] = []
    for row in log.rows:
        values = {(kind, ""): row[kind] for kind in OVERALL if kind in row}
        values |= {("ratio", layer): value for layer, value in row.get("ratio", {}).items()}
        rows += [
            (run.method, run.batch_size, row["samples"], kind, layer, f"{value:.5g}")
            for (kind, layer), value in values.items()
        ]
    return rows


def write(file: Path, names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """CSV, with the commit in each line."""
    write_rows(file, (*names, "commit"), [(*row, commit()) for row in rows])


def write_signs(run: Run, where: Setting, examples: int, folder: Path) -> None:
    """SNRs before the first step and after the last, and how often mean sign(g) opposes mean g."""
    before = start(run)
    _, after = restore(where.out / "runs" / run.name, before)
    snrs: list[tuple[Any, ...]] = []
    counts: list[tuple[Any, ...]] = []
    for time, (params, _) in zip(TIMES, (before, after), strict=True):
        for part, halves in measure(model.loss, params, where.text, examples).items():
            each = zip(*binned(halves), strict=True)
            snrs += [(time, part, f"{x:.5g}", f"{y:.5g}") for x, y in each]
            counts.append((time, part, halves.first.g.size, *opposed(halves)))
    write(folder / "sign_snr.csv", ("parameters", "part", "snr", "snr_of_sign"), snrs)
    names = ("parameters", "part", "of", "mean_surely_not_zero", "mean_sign_opposed")
    write(folder / "sign_opposed.csv", names, counts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what is not there, and measures."""
    where, options = setting(__doc__, seeds=1, extra=add_options, arguments=arguments)
    name = where.size.name
    adams = [run_at(where, "adam", size) for size in options.batch_sizes or BATCHES[name]]
    usual = [run_at(where, method, BATCH_SIZES[name]) for method in ("adam", "micro_adam")]
    logs = run_all([*adams, *usual], where)
    rows = [row for run, log in logs.items() for row in moment_rows(run, log)]
    names = ("method", "batch_size", "samples", "kind", "layer", "value")
    write(options.csv / "moments.csv", names, rows)
    write_signs(usual[0], where, options.examples, options.csv)


if __name__ == "__main__":
    main()
