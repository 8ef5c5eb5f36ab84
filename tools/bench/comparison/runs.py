"""Runs: compile all methods of a problem and time them in interleaved rounds."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

import hlo_surgery as hs
from hlo_surgery.plan import quantity
from tools.bench.comparison.methods import Candidate, DoesNotApply, Method
from tools.models.problem import Problem

# What a method may take of a problem's rounds: a slow one runs in fewer of them, and has no warm-up
# beyond that.
SECONDS = 20.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What a method takes on a problem; `seconds` is None if it has not run, `note` says why.

    `peak` is temporaries, arguments and outputs. `predicted`: seconds beside the plain gradient, by
    the plan; `estimated`: by the compiler, where `seconds` are counted in bundles.
    """

    problem: Problem
    method: str
    seconds: float | None = None
    temporaries: int = 0
    peak: int = 0
    compile_seconds: float = 0
    runs: int = 0
    note: str = ""
    predicted: float | None = None
    estimated: float | None = None


@dataclass(frozen=True)
class Running:
    """A compiled candidate and the seconds that its runs took."""

    candidate: Candidate
    executable: jax.stages.Compiled
    compile_seconds: float
    times: list[float] = field(default_factory=list[float])

    @property
    def temporaries(self) -> int:
        memory: Any = self.executable.memory_analysis()
        return memory.temp_size_in_bytes

    @property
    def peak(self) -> int:
        memory: Any = self.executable.memory_analysis()
        return self.temporaries + memory.argument_size_in_bytes + memory.output_size_in_bytes

    def run(self, args: Sequence[Any]) -> None:
        start = time.perf_counter()
        jax.block_until_ready(self.executable(*args))
        self.times.append(time.perf_counter() - start)

    def warm_up(self, args: Sequence[Any]) -> None:
        """Run once, and keep that time only if there is none for another."""
        self.run(args)
        if self.times[0] < SECONDS:
            self.times.clear()


def measure(
    problem: Problem, methods: Mapping[str, Method], rounds: int, limit: float, say: Say
) -> list[Row]:
    """A row for each method, in their order. `limit`: bytes of temporaries. `say` is told what is
    being done.
    """
    args, running, notes = problem.make(), dict[str, Running](), dict[str, str]()
    for name, method in methods.items():
        say(f"{problem.title}: {name}")
        try:
            running[name] = _fastest(_compiled(method(problem, None), args), args, limit)
        except (DoesNotApply, hs.Refusal) as reason:
            notes[name] = f"{reason}"
    shuffled = random.Random(0)
    for number in range(rounds):
        say(f"{problem.title}: round {number + 1} of {rounds}")
        # No method always follows the same other, which leaves caches and memory in its own state.
        for one in shuffled.sample(list(running.values()), len(running)):
            if sum(one.times) < SECONDS:
                one.run(args)
    return [
        _row(problem, name, running[name])
        if name in running
        else Row(problem, name, note=notes[name])
        for name in methods
    ]


def _compiled(candidates: Sequence[Candidate], args: Sequence[Any]) -> list[Running]:
    found: list[Running] = []
    for candidate in candidates:
        lowered = jax.jit(candidate.function).lower(*args)
        start = time.perf_counter()
        executable = lowered.compile()
        found.append(Running(candidate, executable, time.perf_counter() - start))
    return found


def _fastest(compiled: Sequence[Running], args: Sequence[Any], limit: float) -> Running:
    """Warmed up, and of several candidates the one that was the fastest in a run after that."""
    fitting = [one for one in compiled if one.temporaries <= limit]
    if not fitting:
        raise DoesNotApply(_over(compiled, limit))
    for one in fitting:
        one.warm_up(args)
        if len(fitting) > 1 and not one.times:
            one.run(args)
    best = min(fitting, key=lambda one: sum(one.times))
    label = "; ".join(
        [best.candidate.label, *(_over([one], limit) for one in compiled if one not in fitting)]
    )
    kept = [seconds for seconds in best.times if seconds >= SECONDS]
    return Running(
        replace(best.candidate, label=label), best.executable, best.compile_seconds, kept
    )


def _over(compiled: Sequence[Running], limit: float) -> str:
    least = min(compiled, key=lambda one: one.temporaries)
    needed = f"{quantity(least.temporaries)}B of temporaries, the limit is {quantity(limit)}B"
    return f"skipped: {least.candidate.label} {needed}".replace("  ", " ")


def _row(problem: Problem, name: str, one: Running) -> Row:
    return Row(
        problem,
        name,
        statistics.median(one.times),
        one.temporaries,
        one.peak,
        one.compile_seconds,
        len(one.times),
        one.candidate.label,
        one.candidate.predicted,
    )
