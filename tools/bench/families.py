"""Gradient and second moment (or clipped mean) by every method, over families of models and sizes.

python -m tools.bench.families [--families mlp lm conv] [--batches 64 256] [--widths 1024]
    [--depths 6] [--methods plain surgery] [--rounds 9] [--limit-gb 8] [--target tpu:v5e]
    [--strategies] [--csv FILE] [--png FILE]

All sizes but the first of each list are taken one at a time, with the first of the others, for the
families that have such a size. A method runs in fewer rounds where it is slow; where it has not run
at all, its row says why. With --target nothing runs: times on that TPU are counted in bundles,
beside the compiler's estimates. With --strategies every strategy is forced, and the order of their
times held against the predicted one.
"""

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from hlo_surgery.targets.target import find_target, without_tpu
from tools.bench.bundles.program_time import dump_bundles
from tools.bench.comparison.estimates import estimate
from tools.bench.comparison.methods import METHODS
from tools.bench.comparison.plot import plot
from tools.bench.comparison.runs import Row, Say, measure
from tools.bench.comparison.strategies import FORCED, agreement
from tools.bench.comparison.tables import show, write_csv
from tools.models.families import BATCHES, FAMILIES
from tools.models.problem import Build, Problem


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    for name in ("batches", "widths", "depths"):
        parser.add_argument(f"--{name}", nargs="+", type=int, default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--limit-gb",
        type=float,
        default=8,
        help="of temporaries; what XLA plans more for is skipped",
    )
    parser.add_argument("--target", help="such as tpu:v5e")
    parser.add_argument("--strategies", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def problems(options: argparse.Namespace) -> list[Problem]:
    builds = [(build, family) for family in options.families for build in FAMILIES[family]]
    return [problem for build, family in builds for problem in _sized(build, family, options)]


def _sized(build: Build, family: str, options: argparse.Namespace) -> Iterator[Problem]:
    asked = {
        "batch": options.batches or BATCHES.get(family, []),
        "width": options.widths,
        "depth": options.depths,
    }
    sizes = {
        name: found
        for name, found in asked.items()
        if found and name in inspect.signature(build).parameters
    }
    first = {name: found[0] for name, found in sizes.items()}
    yield build(**first)
    for name, found in sizes.items():
        yield from (build(**{**first, name: size}) for size in found[1:])


def rows_of(problem: Problem, options: argparse.Namespace, say: Say) -> list[Row]:
    methods = FORCED if options.strategies else {name: METHODS[name] for name in options.methods}
    if options.target:
        return estimate(problem, methods, find_target(options.target), say, options.folder)
    return measure(problem, methods, options.rounds, options.limit_gb * 1e9, say)


def main() -> None:
    options = parsed()
    if options.target:
        options.folder = dump_bundles()
        without_tpu()
    tables: list[list[Row]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        for problem in progress.track(problems(options), task_id=task):
            tables.append(
                rows_of(problem, options, lambda text: progress.update(task, description=text))
            )
            show(tables[-1])
    if options.strategies:
        print("\n".join(agreement(tables)))
    if options.csv:
        write_csv(tables, options.csv)
    if options.png:
        plot(tables, options.png)


if __name__ == "__main__":
    main()
