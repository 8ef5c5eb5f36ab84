"""Trip counts: how often each loop of a scheduled program runs, and with it each instruction.

The compilers for CPU and GPU write it down. That for TPU does not: there the loop is run for its
counters alone, until its condition fails. A long one whose counter moves evenly is then known from
its first rounds.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hlo_surgery.targets.scheduled.known_scalars import Known, known_scalars
from hlo_surgery.targets.scheduled.loop_counters import deciding, is_linear
from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program

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
    names, state, gaps = deciding(condition, body), start, list[int]()
    for rounds in range(LONGEST):
        goes_on = known_scalars(program, condition, [state], names)[condition.root.name]
        if not goes_on:
            return rounds if goes_on == 0 else None
        if rounds < EVEN and (compared := _compared(program, condition, [state])):
            gaps.append(compared[1])
            if rounds == EVEN - 1 and is_linear(program, names, condition, body) and _is_even(gaps):
                return _rounds(compared[0], gaps[0], gaps[1] - gaps[0])
        state = known_scalars(program, body, [state], names)[body.root.name]
    return None


def _is_even(gaps: Sequence[int]) -> bool:
    """A linear recurrence of fewer scalars is even for good if it is even for so long."""
    return len(gaps) == EVEN and len({b - a for a, b in pairwise(gaps)}) == 1


def _compared(
    program: Program, condition: Computation, arguments: Sequence[Known]
) -> tuple[str, int] | None:
    """The direction of a condition's final comparison, and its left side less its right."""
    scalars, root = known_scalars(program, condition, arguments), condition.root
    if root.opcode == "fusion":
        inside = program.computations[root.called("calls") or ""]
        return _compared(program, inside, [scalars[name] for name in root.operands])
    found = re.search(r"direction=(\w+)", root.text)
    if root.opcode != "compare" or not found:
        return None
    left, right = (scalars[name] for name in root.operands)
    return (found[1], left - right) if isinstance(left, int) and isinstance(right, int) else None


def _rounds(direction: str, gap: int, step: int) -> int | None:
    """Steps until the comparison of a moving gap with zero fails; None if it never does.

    >>> _rounds("LT", -7, 1), _rounds("GE", 6, -2), _rounds("NE", -6, 3)
    (7, 4, 2)
    >>> _rounds("LT", 0, 1), _rounds("LT", -1, 0)
    (0, None)
    """
    if direction in ("GT", "GE"):
        direction, gap, step = {"GT": "LT", "GE": "LE"}[direction], -gap, -step
    if direction == "NE":
        return gap // -step if step and gap % step == 0 and gap // -step >= 0 else None
    if gap > 0 or (gap == 0 and direction == "LT"):
        return 0
    if step <= 0 or direction not in ("LT", "LE"):
        return None
    return -gap // step + 1 if direction == "LE" else -(gap // step)


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
