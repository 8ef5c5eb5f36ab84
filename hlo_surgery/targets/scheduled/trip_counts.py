"""Trip counts: how often each loop of a scheduled program runs, and with it each instruction.

The compilers for CPU and GPU write it down. That for TPU does not: there the loop is run for its
counters alone, until its condition fails. A long one whose counter moves evenly is then known from
its first rounds.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hlo_surgery.passes.dataflow.numbers import rounds_while
from hlo_surgery.targets.scheduled.known_scalars import Known, is_held, known_scalars
from hlo_surgery.targets.scheduled.loop_counters import deciding, is_linear
from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program
from hlo_surgery.targets.scheduled.shapes import Array

# Rounds that are run one by one before a trip count is not known, and those from which an even
# counter is.
LONGEST, EVEN = 1 << 15, 64


@dataclass(frozen=True)
class Executed:
    """An instruction, its computation, and how often it runs: None in a loop of unknown trips.

    `unknown`: it is such a loop, whose trip count depends on data.
    """

    instruction: Instruction
    computation: Computation
    times: int | None
    unknown: bool


class Compared(NamedTuple):
    """A comparison of two numbers of one integer type."""

    direction: str
    left: int
    right: int
    dtype: str


def executed(program: Program) -> Iterator[Executed]:
    """Every instruction but for the insides of fusions."""
    yield from _executed(program, program.entry, [None] * len(program.entry.parameters), 1)


def summed(runs: Iterable[tuple[str, int | None]]) -> dict[str, int | None]:
    """The runs of each kind together, None where one of them is unknown.

    >>> summed([("sort", 2), ("gather", 1), ("sort", 3), ("gather", None)])
    {'sort': 5, 'gather': None}
    """
    total = dict[str, int | None]()
    for kind, times in runs:
        before = total.get(kind, 0)
        total[kind] = None if before is None or times is None else before + times
    return total


def _executed(
    program: Program, computation: Computation, arguments: Sequence[Known], times: int | None
) -> Iterator[Executed]:
    scalars = known_scalars(program, computation, arguments)
    for each in computation.instructions:
        entering = list(entered(program, each, scalars))
        yield Executed(each, computation, times, any(rounds is None for _, _, rounds in entering))
        for inside, given, rounds in entering:
            inner = None if times is None or rounds is None else times * rounds
            yield from _executed(program, inside, given, inner)


def entered(
    program: Program, instruction: Instruction, scalars: dict[str, Known]
) -> Iterator[tuple[Computation, list[Known], int | None]]:
    """What an instruction runs: a computation, its known arguments, how often (None: unknown)."""
    if instruction.opcode == "while":
        start = scalars[instruction.operands[0]]
        body = program.computations[instruction.called("body") or ""]
        yield body, [_invariants(program, body, start)], trip_count(program, instruction, start)
    elif instruction.opcode in ("call", "conditional"):
        given = [scalars[name] for name in instruction.operands]
        names = [name for role, name in instruction.calls if role != "calls"]
        for branch, name in enumerate(names, 1):
            yield (
                program.computations[name],
                given if instruction.opcode == "call" else [given[branch]],
                1,
            )


def trip_count(program: Program, loop: Instruction, start: Known) -> int | None:
    """How often a loop's body runs, None where that depends on data. `start`: what is known of what
    it carries.
    """
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text)
    if found:
        return int(found[1])
    body = program.computations[loop.called("body") or ""]
    condition = program.computations[loop.called("condition") or ""]
    names, state, seen = deciding(condition, body), start, list[Compared]()
    for done in range(LONGEST):
        goes_on = known_scalars(program, condition, [state], names)[condition.root.name]
        if not goes_on:
            return done if goes_on == 0 else None
        if done < EVEN and (compared := _compared(program, condition, [state])):
            seen.append(compared)
            if _moves_evenly(seen) and is_linear(program, names, condition, body):
                return _extrapolated(seen)
        state = known_scalars(program, body, [state], names)[body.root.name]
    return None


def _extrapolated(compared: Sequence[Compared]) -> int | None:
    """The rounds until the comparison of two numbers that move evenly fails; None if it never does,
    or a number leaves its type before, and starts again from the other end.
    """
    first, second = compared[0], compared[1]
    lefts, rights = second.left - first.left, second.right - first.right
    found = rounds_while(first.direction, first.left - first.right, lefts - rights)
    if found is None:
        return None
    ends = [first.left + found * lefts, first.right + found * rights]
    return found if all(is_held(end, first.dtype) for end in ends) else None


def _moves_evenly(compared: Sequence[Compared]) -> bool:
    """A linear recurrence of fewer scalars is even for good if it is even for so long."""
    steps = {(b.left - a.left, b.right - a.right) for a, b in pairwise(compared)}
    return len(compared) == EVEN and len(steps) == 1


def _compared(
    program: Program, condition: Computation, arguments: Sequence[Known]
) -> Compared | None:
    """A condition's final comparison, where both sides are known."""
    scalars, root = known_scalars(program, condition, arguments), condition.root
    if root.opcode == "fusion":
        inside = program.computations[root.called("calls") or ""]
        return _compared(program, inside, [scalars[name] for name in root.operands])
    found = re.search(r"direction=(\w+)", root.text)
    shape = condition.named[root.operands[0]].shape if root.opcode == "compare" else None
    if not found or not isinstance(shape, Array):
        return None
    left, right = (scalars[name] for name in root.operands)
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    return Compared(found[1], left, right, shape.dtype)


def _invariants(program: Program, body: Computation, start: Known) -> Known:
    """What is known of what a loop carries in all rounds: what a round maps to itself."""
    state = start
    while isinstance(state, tuple):
        result = known_scalars(program, body, [state])[body.root.name]
        after = result if isinstance(result, tuple) else (None,) * len(state)
        kept = tuple(old if old == new else None for old, new in zip(state, after, strict=True))
        if kept == state:
            break
        state = kept
    return state
