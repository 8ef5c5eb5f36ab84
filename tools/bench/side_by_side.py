"""Time functions of the same arguments in interleaved rounds; what is known of a program's cost."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from hlo_surgery.targets.costs import Cost, cost_of
from hlo_surgery.targets.target import Target

Compiled = Any


def compile_all(
    functions: dict[str, Callable[..., Any]], args: Sequence[Any]
) -> dict[str, Compiled]:
    return {name: jax.jit(function).lower(*args).compile() for name, function in functions.items()}


def median_seconds(
    compiled: dict[str, Compiled],
    args: Sequence[Any],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    calls: int = 1,
) -> dict[str, float]:
    """Medians over `rounds` rounds, in each of which every function runs once, after a warm-up.

    With `time.process_time` for a clock they are seconds of CPU, of all threads together. With more
    `calls`, each round makes as many in a row and waits for the last: seconds of one of them, on a
    device that runs behind what is asked of it.
    """
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for round_number in range(rounds + 1):
        for name, function in compiled.items():
            start = clock()
            run_in_a_row(function, args, calls)
            if round_number:
                times[name].append((clock() - start) / calls)
    return {name: statistics.median(found) for name, found in times.items()}


def run_in_a_row(function: Compiled, args: Sequence[Any], calls: int) -> None:
    """A device runs what it is asked one after the other, so that the last is done when all are."""
    for _ in range(calls - 1):
        function(*args)
    jax.block_until_ready(function(*args))


def known_cost(executable: Any, target: Target) -> Cost:
    """What it costs. Raises ValueError where a loop runs as often as data says."""
    cost = cost_of(executable, target)
    if cost.unknown_loops:
        raise ValueError(
            f"the trip counts of {cost.unknown_loops} loops are unknown; their work cannot be "
            "counted"
        )
    return cost
