"""Estimates for a TPU that is not here: every method's time, by bundles and by the compiler."""

import time
from collections.abc import Mapping
from pathlib import Path

import jax

import hlo_surgery as hs
from hlo_surgery.targets.target import Target
from tools.bench.bundles.program_time import compiled_with_bundles
from tools.bench.comparison.costs import known_cost
from tools.bench.comparison.methods import Candidate, DoesNotApply, Method
from tools.bench.comparison.runs import Row, Say
from tools.models.problem import Problem


def estimate(
    problem: Problem, methods: Mapping[str, Method], target: Target, say: Say, folder: Path
) -> list[Row]:
    """A row for each method, of its candidates the fastest. libtpu dumps bundles to `folder`."""
    rows: list[Row] = []
    for name, method in methods.items():
        say(f"{problem.title}: {name} compiles for {target.name}")
        try:
            found = [
                _estimated(problem, name, candidate, target, folder)
                for candidate in method(problem, target.name)
            ]
            rows.append(min(found, key=lambda row: (row.seconds is None, row.seconds)))
        except (DoesNotApply, hs.Refusal) as reason:
            rows.append(Row(problem, name, note=f"{reason}"))
    return rows


def _estimated(
    problem: Problem, name: str, candidate: Candidate, target: Target, folder: Path
) -> Row:
    lowered = jax.jit(candidate.function).lower(*problem.structs_on(target.devices[0]))
    start = time.perf_counter()
    try:
        executable, bundles = compiled_with_bundles(lowered.compile, folder, target)
    except jax.errors.JaxRuntimeError as reason:
        return Row(problem, name, note=f"skipped: {str(reason).splitlines()[0]}")
    seconds = time.perf_counter() - start
    cost = known_cost(executable, target)
    without = ", ".join(f"{count} {op}" for op, count in bundles.without_bundles.items())
    note = "; ".join(filter(None, [candidate.label, without and f"no bundles for {without}"]))
    return Row(
        problem,
        name,
        bundles.seconds,
        cost.temporary_bytes,
        cost.peak_bytes,
        seconds,
        note=note,
        predicted=candidate.predicted,
        estimated=cost.estimated_seconds,
    )
