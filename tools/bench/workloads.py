"""Train steps of MicroAdam, by surgery and by vmap, against Adam's over AlgoPerf's workloads.

python -m tools.bench.workloads [--size small] [--workloads unet lm] [--methods Adam] [--rounds 15]
    [--csv FILE]
python -m tools.bench.workloads --size full --target tpu:v5e [--workloads vit] [--csv FILE]

Without --target the steps run here, in interleaved rounds, and medians are given. With it nothing
runs: time is counted in bundles, beside the compiler's own estimates, and full sizes take minutes
to compile. Rows are appended to the CSV file as they come.
"""

import argparse
import csv
import random
import re
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.targets.target import Target, find_target, without_tpu
from tools.bench.bundles.program_time import compiled_with_bundles, dump_bundles
from tools.bench.comparison.costs import known_cost
from tools.bench.comparison.tables import CONSOLE, method_table
from tools.bench.train_step import train_steps
from tools.models.problem import Problem
from tools.models.workloads import WORKLOADS

METHODS = ("Adam", "MicroAdam", "MicroAdam by vmap")
STATE = (0, 1, 2)


@dataclass(frozen=True)
class Row:
    """What a train step takes: bytes as XLA plans them; `note` says why a time is missing."""

    workload: str
    size: str
    batch: int
    method: str
    seconds: float | None = None
    cycles: float | None = None
    estimated: float | None = None
    temporaries: int = 0
    peak: int = 0
    compile_seconds: float = 0
    note: str = ""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", help="such as tpu:v5e")
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def lowered(problem: Problem, method: str, target: str, args: Any) -> jax.stages.Lowered:
    step = train_steps(problem.loss, len(problem.batch_argnums), target, [method])[method]
    return jax.jit(step, donate_argnums=STATE).lower(*args)


def with_moments(params: Any, *batch: Any) -> tuple[Any, ...]:
    """The arguments of a train step at its start."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return params, zeros, zeros, *batch


def measure(name: str, problem: Problem, options: argparse.Namespace) -> list[Row]:
    """A row for each method, run here."""
    params, *batch = problem.make()
    rows, executables, states = list[Row](), list[jax.stages.Compiled](), list[Any]()
    for method in options.methods:
        args = with_moments(params, *batch)
        start = time.perf_counter()
        executables.append(lowered(problem, method, jax.default_backend(), args).compile())
        rows.append(
            _planned(Row(name, options.size, problem.batch, method), executables[-1], start)
        )
        states.append(jax.tree.map(jnp.copy, args[: len(STATE)]))
    times: list[list[float]] = [[] for _ in rows]
    shuffled = random.Random(0)
    # The first round warms up.
    for _ in range(options.rounds + 1):
        for index in shuffled.sample(range(len(rows)), len(rows)):
            start = time.perf_counter()
            states[index] = jax.block_until_ready(executables[index](*states[index], *batch))
            times[index].append(time.perf_counter() - start)
    return [
        replace(row, seconds=statistics.median(found[1:]))
        for row, found in zip(rows, times, strict=True)
    ]


def _planned(row: Row, executable: jax.stages.Compiled, start: float) -> Row:
    memory: Any = executable.memory_analysis()
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporaries, seconds = memory.temp_size_in_bytes, time.perf_counter() - start
    return replace(row, temporaries=temporaries, peak=kept + temporaries, compile_seconds=seconds)


def estimate(
    name: str, problem: Problem, options: argparse.Namespace, target: Target
) -> Iterator[Row]:
    """A row for each method, compiled for a device that is not here."""
    params, *batch = problem.structs_on(target.devices[0])
    for method in options.methods:
        row = Row(name, options.size, problem.batch, method)
        yield _estimated(row, problem, (params, params, params, *batch), target, options.folder)


def _estimated(row: Row, problem: Problem, args: Any, target: Target, folder: Path) -> Row:
    start = time.perf_counter()
    try:
        program = lowered(problem, row.method, target.name, args)
        executable, bundles = compiled_with_bundles(program.compile, folder, target)
    except jax.errors.JaxRuntimeError as reason:
        return replace(row, note=_failure(str(reason)), compile_seconds=time.perf_counter() - start)
    seconds, cost = time.perf_counter() - start, known_cost(executable, target)
    without = ", ".join(f"{count} {op}" for op, count in bundles.without_bundles.items())
    return replace(
        row,
        seconds=bundles.seconds,
        cycles=bundles.cycles,
        estimated=cost.estimated_cycles,
        temporaries=cost.temporary_bytes,
        peak=cost.peak_bytes,
        compile_seconds=seconds,
        note=without and f"no bundles for {without}",
    )


def _failure(problem: str) -> str:
    """What XLA says, where memory does not suffice in short."""
    found = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) hbm", problem)
    return f"out of memory: {found[1]} of {found[2]}" if found else problem.splitlines()[0]


def show(rows: list[Row], title: str) -> None:
    """Ratios are to the first method."""
    table = method_table(title, ["peak", "ratio", "compiles"])
    for row in rows:
        table.add_row(row.method, *_cells(row, rows[0]), f"{row.compile_seconds:.0f} s", row.note)
    CONSOLE.print(table)


def _cells(row: Row, first: Row) -> list[str]:
    if row.seconds is None:
        return ["-"] * 7
    taken = f"{row.cycles / 1e6:.4g} Mcycles" if row.cycles else f"{row.seconds * 1e3:.4g} ms"
    return [
        taken,
        f"{row.seconds / first.seconds:.3f}" if first.seconds else "-",
        f"{row.estimated / first.estimated:.3f}" if row.estimated and first.estimated else "-",
        *(
            cell
            for name in ("temporaries", "peak")
            for cell in _bytes(getattr(row, name), getattr(first, name))
        ),
    ]


def _bytes(size: int, first: int) -> tuple[str, str]:
    return f"{size / 1e6:.1f} MB", f"{size / first:.3f}" if first else "-"


def append(row: Row, file: Path) -> None:
    new = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, asdict(row))
        if new:
            writer.writeheader()
        writer.writerow(asdict(row))


def rows_of(name: str, problem: Problem, options: argparse.Namespace) -> Iterable[Row]:
    if options.target:
        return estimate(name, problem, options, find_target(options.target))
    return measure(name, problem, options)


def main() -> None:
    options = parsed()
    if options.target:
        options.folder = dump_bundles()
        without_tpu()
    for name in options.workloads:
        problem, rows = WORKLOADS[name].of(options.size), list[Row]()
        for row in rows_of(name, problem, options):
            rows.append(row)
            if options.csv:
                append(row, options.csv)
        show(rows, problem.title)


if __name__ == "__main__":
    main()
