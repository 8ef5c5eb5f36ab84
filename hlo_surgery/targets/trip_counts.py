"""Trip counts: how often each loop of a scheduled program runs, and with it each instruction.

The compilers for CPU and GPU write it down. That for TPU does not: there the loop is run for its
counters alone, until its condition fails. A long one whose counter moves evenly is then known from
its first rounds.

Loop counters: what decides how often a loop runs, and whether that only adds and subtracts.

Known scalars: a scheduled program's integers that no argument decides, such as loop counters.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hlo_surgery.passes.dataflow.numbers import rounds_while
from hlo_surgery.targets.program import Array, Computation, Instruction, Program

LINEAR = frozenset(
    [
        *(
            "parameter",
            "constant",
            "tuple",
            "get-tuple-element",
            "add",
            "subtract",
            "fusion",
            "compare",
        ),
        *("copy", "copy-start", "copy-done", "bitcast", "reshape", "opt-barrier"),
    ]
)


def deciding(condition: Computation, body: Computation) -> set[str]:
    """The names of all that the condition rests on, there and in the body, round after round."""
    names = _behind(condition, [condition.root.name])
    slots, done = _taken(condition, names), set[int]()
    if body.root.opcode != "tuple" or slots is None:
        return _all(condition, body)
    while slots - done:
        done |= slots
        names |= _behind(body, [body.root.operands[slot] for slot in done])
        if (more := _taken(body, names)) is None:
            return _all(condition, body)
        slots |= more
    return names | {body.root.name}


def _all(*computations: Computation) -> set[str]:
    return {each.name for computation in computations for each in computation.instructions}


def _behind(computation: Computation, names: Iterable[str]) -> set[str]:
    """The names with all that they are computed from."""
    needed = set(names)
    for each in reversed(computation.instructions):
        if each.name in needed:
            needed.update(each.operands)
    return needed


def _taken(computation: Computation, names: Collection[str]) -> set[int] | None:
    """The elements of what the loop carries that are used; None where all are."""
    (carried,) = computation.parameters
    users = [each for each in computation.users.get(carried.name, []) if each.name in names]
    if any(each.opcode != "get-tuple-element" for each in users):
        return None
    return {
        int(each.text.split("index=")[1].split(",")[0].split()[0])
        for each in users
        if "index=" in each.text
    }


def is_linear(program: Program, names: Collection[str], *computations: Computation) -> bool:
    """Whether what is named only adds, subtracts and, at last, compares."""
    each = [i for computation in computations for i in computation.instructions if i.name in names]
    inside = [
        program.computations[called] for i in each for role, called in i.calls if role == "calls"
    ]
    fused = all(is_linear(program, _all(computation), computation) for computation in inside)
    return fused and all(i.opcode in LINEAR for i in each)


# An integer (a predicate is 0 or 1), None where it is not known, or the elements of a tuple.
Known = int | None | tuple["Known", ...]

RENAMES = frozenset(["copy", "bitcast", "reshape", "opt-barrier", "copy-done"])
CONVERSIONS = frozenset(["convert", "bitcast-convert"])
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negate": lambda x: -x,
    "maximum": max,
    "minimum": min,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": lambda x: ~x,
    "select": lambda chosen, one, other: one if chosen else other,
    "clamp": lambda low, x, high: min(max(low, x), high),
}
INTEGER = re.compile(r"(s|u|pred)(\d*)")
BOOLEANS = {"true": 1, "false": 0}


def known_scalars(
    program: Program,
    computation: Computation,
    arguments: Sequence[Known],
    names: Collection[str] | None = None,
) -> dict[str, Known]:
    """What is known of each value, or of those named, given what is known of the arguments."""
    values: dict[str, Known] = {}
    for each in computation.instructions:
        if names is not None and each.name not in names:
            continue
        if each.opcode == "parameter":
            values[each.name] = arguments[int(each.argument)]
        else:
            values[each.name] = _value(program, each, [values.get(name) for name in each.operands])
    return values


def _value(program: Program, instruction: Instruction, operands: Sequence[Known]) -> Known:
    opcode = instruction.opcode
    if opcode == "tuple":
        return tuple(operands)
    if opcode == "get-tuple-element":
        found = re.search(r"index=(\d+)", instruction.text)
        return operands[0][int(found[1])] if found and isinstance(operands[0], tuple) else None
    if opcode in RENAMES or opcode == "copy-start":
        return operands[0]
    shape = instruction.shape
    if isinstance(shape, Array) and shape.dims:
        return None
    if opcode in ("fusion", "call"):
        inside = program.computations[
            instruction.called("calls") or instruction.called("to_apply") or ""
        ]
        return known_scalars(program, inside, operands)[inside.root.name]
    return _number(instruction, shape.dtype, operands) if isinstance(shape, Array) else None


def _number(instruction: Instruction, dtype: str, operands: Sequence[Known]) -> int | None:
    """A scalar of an integer type, or a predicate."""
    opcode, kind = instruction.opcode, INTEGER.fullmatch(dtype)
    if kind is None:
        return None
    if opcode == "constant":
        found = BOOLEANS.get(instruction.argument, instruction.argument)
        return int(found) if re.fullmatch(r"-?\d+", str(found)) else None
    given = [each for each in operands if isinstance(each, int)]
    compute = _comparison(instruction) if opcode == "compare" else ARITHMETIC.get(opcode)
    if len(given) < len(operands) or not given:
        return _without_all(opcode, operands)
    if opcode == "convert" and dtype == "pred":
        return int(given[0] != 0)
    if opcode in CONVERSIONS:
        return _wrapped(given[0], *kind.groups())
    return None if compute is None else _wrapped(compute(*given), *kind.groups())


def _without_all(opcode: str, operands: Sequence[Known]) -> int | None:
    """Conjunctions are false, selections the other, where a known operand says so."""
    if opcode == "and" and 0 in operands:
        return 0
    if opcode == "select" and isinstance(operands[0], int):
        chosen = operands[1 if operands[0] else 2]
        return chosen if isinstance(chosen, int) else None
    return None


def _comparison(instruction: Instruction) -> Callable[[int, int], bool] | None:
    found = re.search(r"direction=(\w+)", instruction.text)
    return COMPARISONS.get(found[1]) if found else None


def is_held(number: int, dtype: str) -> bool:
    """Whether a number is one of an integer type's.

    >>> is_held(127, "s8"), is_held(128, "s8"), is_held(-1, "u32")
    (True, False, False)
    """
    kind = INTEGER.fullmatch(dtype)
    return kind is not None and _wrapped(number, *kind.groups()) == number


def _wrapped(number: int, kind: str, bits: str) -> int:
    """The number as its type holds it: modulo 2 to the number of its bits.

    >>> _wrapped(256, "u", "8"), _wrapped(128, "s", "8"), _wrapped(-1, "pred", "")
    (0, -128, 1)
    """
    width = int(bits or 1)
    number &= (1 << width) - 1
    return number - (1 << width) if kind == "s" and number >> (width - 1) else number


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
