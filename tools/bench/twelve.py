"""Twelve workloads by every way to norms, second moments and clipped means that a user has.

python -m tools.bench.twelve [--workloads "mlp wide" lstm] [--statistics norms] [--rounds 9]
    [--ways plan micro_grad] [--csv FILE]

Beside the plain gradient: ours by plan, each of our strategies, `vmap` and `micro_grad` over
all examples (optax's), and, over chunks of them, `vmap` by hand, `micro_grad`, jax-privacy for
clipped means, and ours of the gradient that the user accumulates over such; of several the fastest
counts. Seconds are of CPU, of all threads, and wall-clock; ways are interleaved in a process of
their own for each workload and statistic, and what they return is held against `vmap`'s before it
is timed. Norms and second moments come with the gradient, clipped means without.
"""

import argparse
import csv
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import hlo_surgery as hs
from tools.models.problem import Problem
from tools.models.twelve import GRADIENTS, HELD_OUT, TWELVE, accumulated

MAX_NORM = 0.5
CLIPPED = hs.clipped_mean(MAX_NORM)
STATISTICS = {"norms": hs.norms(), "squares": hs.second_moment(), "clipped": CLIPPED}
STRATEGIES = ("square", "ghost", "segments", "lift", "loop")
CHUNKS = (1, 8)
RIVALS = ("vmap", "chunks", "micro_grad", "jax-privacy")
# What a way may take of a workload's rounds, in seconds of CPU: a slow one runs in fewer of them.
SECONDS = 1.0
CONSOLE = Console(width=None if Console().is_terminal else 140)
Way = Callable[..., Any]


@dataclass
class Row:
    """What a way takes: medians of seconds of CPU and of the clock, bytes that XLA plans, and the
    CPU seconds of tracing, compiling and the first call.
    """

    workload: str
    statistic: str
    way: str
    temporaries: int
    first_call: float
    cpu: float = 0
    wall: float = 0
    times: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


def norm(gradient: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))


def clipped(gradient: Any) -> Any:
    factor = jnp.minimum(1, MAX_NORM / norm(gradient))
    return jax.tree.map(lambda leaf: leaf * factor, gradient)


def squared(gradient: Any) -> Any:
    return jax.tree.map(jnp.square, gradient)


def parts(statistic: str, gradient: Any) -> tuple[Any, Any]:
    """Of one example's gradient: what is averaged, and what is returned for each example."""
    summed = {"norms": gradient, "squares": (gradient, squared(gradient))}
    return (
        clipped(gradient) if statistic == "clipped" else summed[statistic],
        norm(gradient) if statistic == "norms" else (),
    )


def by_hand(problem: Problem, statistic: str, chunk: int) -> Way:
    """`vmap` over a chunk of examples, and a scan over the chunks that adds up."""

    def one(params: Any, *example: Any) -> Any:
        own = jax.grad(problem.loss)(params, *(leaf[None] for leaf in example))
        return parts(statistic, own)

    def of_chunk(params: Any, *batch: Any) -> Any:
        summed, rows = jax.vmap(one, (None, *[0] * len(batch)))(params, *batch)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), summed), rows

    def function(params: Any, *batch: Any) -> Any:
        def step(total: Any, examples: Any) -> Any:
            summed, rows = of_chunk(params, *examples)
            return jax.tree.map(jnp.add, total, summed), rows

        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_chunk, params, *batch)[0])
        chunks = [leaf.reshape(-1, chunk, *leaf.shape[1:]) for leaf in batch]
        whole = chunk == problem.batch
        total, rows = of_chunk(params, *batch) if whole else jax.lax.scan(step, zeros, chunks)
        means = jax.tree.map(lambda leaf: leaf / problem.batch, total)
        return (means, rows.ravel()) if statistic == "norms" else means

    return function


def by_optax(problem: Problem, statistic: str, chunk: int | None) -> Way:
    """`micro_grad`, which its docstring says is for this; without a chunk of the whole batch."""
    function = optax.microbatching.micro_grad(
        problem.loss,
        batch_argnums=problem.batch_argnums,
        microbatch_size=chunk,
        accumulator=optax.microbatching.AccumulationType.MEAN,
        transform_fn=lambda gradient: parts(statistic, gradient)[0],
        metrics_fn=lambda gradient: parts(statistic, gradient)[1],
    )

    def with_rows(*args: Any) -> Any:
        means, beside = function(*args)
        return (means, beside.metrics) if statistic == "norms" else means

    return with_rows


def by_jax_privacy(problem: Problem, chunk: int) -> Way:
    from jax_privacy import clipped_grad  # pyright: ignore

    how: Any = {"l2_clip_norm": MAX_NORM, "normalize_by": problem.batch, "microbatch_size": chunk}
    return clipped_grad(problem.loss, batch_argnums=problem.batch_argnums, **how)


def ours(gradient: Way, problem: Problem, statistic: str, **planning: Any) -> Way:
    asked: Any = {"batch_argnums": problem.batch_argnums, "statistics": STATISTICS[statistic]}
    function = hs.rewrite(gradient, **asked, **planning)
    return (lambda *args: function(*args)[1]) if statistic == "clipped" else function


def ways(workload: str, problem: Problem, statistic: str) -> Iterator[tuple[str, Way]]:
    """All of them; a rival's chunks have one name up to a colon."""
    yield "vmap", by_hand(problem, statistic, problem.batch)
    plain = GRADIENTS.get(workload, jax.grad)(problem.loss)
    yield "plain", plain
    yield "plan", ours(plain, problem, statistic)
    yield "micro_grad, whole", by_optax(problem, statistic, None)
    for name in STRATEGIES:
        yield f"our {name}", ours(plain, problem, statistic, strategy=name)
    for chunk in (c for c in CHUNKS if c < problem.batch):
        gradient = accumulated(problem.loss, chunk)
        yield f"in microbatches: {chunk}", ours(gradient, problem, statistic)
        yield f"chunks: {chunk}", by_hand(problem, statistic, chunk)
        yield f"micro_grad: {chunk}", by_optax(problem, statistic, chunk)
        if statistic == "clipped":
            yield f"jax-privacy: {chunk}", by_jax_privacy(problem, chunk)


def check(got: Any, want: Any) -> None:
    """Sums of float32 in another order, leaf by leaf."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * np.abs(w).max())


def measure(workload: str, statistic: str, rounds: int, asked: Sequence[str] = ()) -> list[Row]:
    """A row for each way, the plain gradient's first; what has one program is compiled once.

    Where some are asked for, others that do not begin so are left out, but for `vmap`, which all
    are held to, and the plain gradient.
    """
    taken = ("vmap", "plain", *asked) if asked else ("",)
    problem = (TWELVE | HELD_OUT)[workload]()
    args, compiled, rows = problem.make(), dict[str, Any](), dict[str, Row]()
    first_of, want = dict[str, str](), None
    for name, function in ways(workload, problem, statistic):
        if not name.startswith(taken):
            continue
        start = time.process_time()
        try:
            lowered = jax.jit(function).lower(*args)
        except ValueError as reason:
            if "does not apply" not in str(reason):
                raise
            continue
        same = first_of.setdefault(lowered.as_text(), name)
        if same != name:
            rows[name] = replace(rows[same], way=name)
            continue
        compiled[name] = lowered.compile()
        got = jax.block_until_ready(compiled[name](*args))
        seconds, memory = time.process_time() - start, compiled[name].memory_analysis()
        rows[name] = Row(workload, statistic, name, memory.temp_size_in_bytes, seconds)
        want = got if want is None else want
        if name != "plain":
            check(got, want)
    run_in_rounds(compiled, rows, args, rounds)
    return best_of_chunks(rows)


def run_in_rounds(compiled: dict[str, Any], rows: dict[str, Row], args: Any, rounds: int) -> None:
    """Each runs once a round, in another order each, until it has taken SECONDS."""
    shuffled = random.Random(0)
    for _ in range(rounds):
        for name in shuffled.sample(list(compiled), len(compiled)):
            times = rows[name].times
            if sum(cpu for cpu, _ in times) < SECONDS:
                cpu, wall = time.process_time(), time.perf_counter()
                jax.block_until_ready(compiled[name](*args))
                times.append((time.process_time() - cpu, time.perf_counter() - wall))
    for row in rows.values():
        row.cpu, row.wall = map(statistics.median, zip(*row.times, strict=True))


def best_of_chunks(rows: dict[str, Row]) -> list[Row]:
    """The plain gradient's first, and of several chunks the fastest."""
    best = {"plain": rows["plain"]}
    for name, row in rows.items():
        own = name.split(":")[0]
        best[own] = min(best.get(own, row), row, key=lambda r: r.cpu)
    return list(best.values())


def show(rows: list[Row]) -> None:
    table = Table(title=f"{rows[0].workload}, {rows[0].statistic}", title_justify="left")
    for heading in ("way", "CPU", "ratio", "wall-clock", "temporaries", "first call, CPU"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        table.add_row(
            row.way,
            f"{row.cpu * 1e3:.3g} ms",
            f"{row.cpu / rows[0].cpu:.2f} x",
            f"{row.wall * 1e3:.3g} ms",
            f"{row.temporaries / 1e6:.2f} MB",
            f"{row.first_call:.1f} s",
        )
    CONSOLE.print(table)


def fastest(rows: list[Row], *ways: str) -> Row:
    return min((row for row in rows if row.way.startswith(ways)), key=lambda row: row.cpu)


def show_all(tables: list[list[Row]]) -> None:
    """A line for each table, and how often a rival leads."""
    table = Table(title="ratios of CPU seconds to the plain gradient's", title_justify="left")
    for heading in ("workload", "plain", "plan", "ours", "in microbatches", "rival", "MB"):
        table.add_column(heading)
    behind: list[bool] = []
    for rows in tables:
        plain, plan, parts = (fastest(rows, way) for way in ("plain", "plan", "in "))
        own, rival = fastest(rows, "plan", "our "), fastest(rows, *RIVALS)
        if plan.cpu > 1.05 * rival.cpu:
            behind.append(parts.cpu > 1.05 * rival.cpu)
        cells = [f"{row.cpu / plain.cpu:.2f} {row.way}" for row in (plan, own, parts, rival)]
        megabytes = ", ".join(f"{r.temporaries / 1e6:.1f}" for r in (plain, plan, parts, rival))
        name = f"{plan.workload}, {plan.statistic}"
        table.add_row(name, f"{plain.cpu * 1e3:.3g} ms", *cells, megabytes)
    CONSOLE.print(table)
    print(f"a rival is ahead of the plan by more than 5 % in {len(behind)} of {len(tables)} rows,")
    print(f"of these in {sum(behind)} of the plan in the user's microbatches, too")


def show_regret(tables: list[list[Row]]) -> None:
    """How many times as long as the fastest of our strategies the plan takes."""
    regrets = [fastest(rows, "plan").cpu / fastest(rows, "plan", "our ").cpu for rows in tables]
    print(f"regret: median {statistics.median(regrets):.2f}, worst {max(regrets):.2f}")


def write(tables: list[list[Row]], file: Path) -> None:
    rows = [asdict(row) for rows in tables for row in rows]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, [n for n in rows[0] if n != "times"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=TWELVE | HELD_OUT, default=list(TWELVE))
    parser.add_argument("--statistics", nargs="+", choices=STATISTICS, default=list(STATISTICS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ways", nargs="+", default=(), help="how those begin that are run")
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


def main() -> None:
    options, tables = parsed(), list[list[Row]]()
    for asked in product(options.workloads, options.statistics):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            tables.append(pool.submit(measure, *asked, options.rounds, options.ways).result())
        show(tables[-1])
    if not options.ways:
        show_all(tables)
    if not options.ways or "plan" in options.ways:
        show_regret(tables)
    if options.csv:
        write(tables, options.csv)


if __name__ == "__main__":
    main()
