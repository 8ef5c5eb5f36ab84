"""Trip counts: how often each loop of a scheduled program runs, and with it each instruction.

The compilers for CPU and GPU write it down. That for TPU does not: there the loop is run for the
integers that its condition asks for, until it fails.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from hlo_surgery.targets.program import Array, Computation, Instruction, Program

# An integer (a predicate is 0 or 1), None where an argument decides it, or a tuple of these.
Known = int | None | tuple["Known", ...]
ValueOf = Callable[[Instruction], Known]
# Runs by kind, None where data decides.
Counts = dict[str, int | None]

RENAMES = frozenset(["copy", "bitcast", "reshape", "opt-barrier", "copy-start", "copy-done"])
COMPARISONS = {"LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq", "NE": "ne"}
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negate": operator.neg,
    "maximum": max,
    "minimum": min,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "clamp": lambda low, x, high: min(max(low, x), high),
    "convert": operator.pos,
    "bitcast-convert": operator.pos,
}
BOOLEANS = {"true": "1", "false": "0"}
# Rounds that are run one by one before a trip count is not known.
LONGEST = 1 << 17


def known_scalars(arguments: Sequence[Known]) -> ValueOf:
    """What is known of an instruction's value, given what is known of the arguments around it."""

    @cache
    def value(each: Instruction) -> Known:
        shape, operands = each.shape, each.operands
        if each.opcode == "parameter":
            return arguments[int(each.argument)]
        if each.opcode == "tuple":
            return tuple(map(value, operands))
        if each.opcode == "get-tuple-element":
            whole = value(operands[0])
            return whole[each.index] if isinstance(whole, tuple) else None
        if each.opcode in RENAMES:
            return value(operands[0])
        if isinstance(shape, Array) and shape.dims:
            return None
        given = [value(operand) for operand in operands]
        if each.opcode in ("fusion", "call"):
            return known_scalars(given)(each.inside().root)
        return _number(each, shape.dtype, given) if isinstance(shape, Array) else None

    return value


def _number(instruction: Instruction, dtype: str, given: Sequence[Any]) -> int | None:
    """A scalar of an integer type, or a predicate."""
    opcode, kind = instruction.opcode, re.fullmatch(r"(s|u|pred)(\d*)", dtype)
    if kind is None:
        return None
    if opcode == "constant":
        text = BOOLEANS.get(instruction.argument, instruction.argument)
        return int(text) if re.fullmatch(r"-?\d+", text) else None
    if opcode == "select" and given[0] is not None:
        return given[1 if given[0] else 2]
    compute = ARITHMETIC.get(opcode)
    if opcode == "compare":
        compute = getattr(operator, COMPARISONS[instruction.option("direction")])
    if compute is None or not all(isinstance(x, int) for x in given):
        return None
    found = compute(*given)
    if opcode == "convert" and dtype == "pred":
        return int(found != 0)
    return _wrapped(found, *kind.groups())


def _wrapped(number: int, kind: str, bits: str) -> int:
    """The number as its type holds it: modulo 2 to the number of its bits.

    >>> _wrapped(256, "u", "8"), _wrapped(128, "s", "8"), _wrapped(-1, "pred", "")
    (0, -128, 1)
    """
    width = int(bits or 1)
    number &= (1 << width) - 1
    return number - (1 << width) if kind == "s" and number >> (width - 1) else number


# A computation as it is entered: its instructions, each with what that runs, and how often; None
# where data decides.
Block = Sequence[tuple[Instruction, Sequence[tuple["Block", int | None]]]]


class Executed(NamedTuple):
    """An instruction, and how often it runs: None in a loop of unknown trips.

    `unknown`: it is such a loop, whose trip count depends on data, or is too large to be run.
    """

    instruction: Instruction
    times: int | None
    unknown: bool


def executed(program: Program) -> Iterator[Executed]:
    """Every instruction but for the insides of fusions."""
    return runs_of(entry(program))


def runs_of(block: Block, times: int | None = 1) -> Iterator[Executed]:
    """The same of a block that runs so often itself."""
    for instruction, inner in block:
        unknown = any(rounds is None for _, rounds in inner)
        yield Executed(instruction, times, unknown)
        for inside, rounds in inner:
            all_times = None if times is None or rounds is None else times * rounds
            yield from runs_of(inside, all_times)


def summed(runs: Iterable[tuple[str, int | None]]) -> Counts:
    """The runs of each kind together, None where one of them is unknown.

    >>> summed([("sort", 2), ("gather", 1), ("sort", 3), ("gather", None)])
    {'sort': 5, 'gather': None}
    """
    total = Counts()
    for kind, times in runs:
        before = total.get(kind, 0)
        total[kind] = None if before is None or times is None else before + times
    return total


def entry(program: Program) -> Block:
    """What a program runs, of whose own arguments nothing is known."""
    return _entered(program.entry, [None] * len(program.entry.parameters))


def _entered(computation: Computation, arguments: Sequence[Known]) -> Block:
    value = known_scalars(arguments)
    return [(each, list(_inside(each, value))) for each in computation.instructions]


def _inside(instruction: Instruction, value: ValueOf) -> Iterator[tuple[Block, int | None]]:
    if instruction.opcode == "while":
        start, body = value(instruction.operands[0]), instruction.inside("body")
        yield _entered(body, [_invariants(body, start)]), trip_count(instruction, start)
    elif instruction.opcode in ("call", "conditional"):
        given = list(map(value, instruction.operands))
        names = [name for role, name in instruction.calls if role != "calls"]
        for branch, name in enumerate(names, 1):
            own = given if instruction.opcode == "call" else [given[branch]]
            yield _entered(instruction.known[name], own), 1


def trip_count(loop: Instruction, start: Known) -> int | None:
    """How often a loop's body runs, None where that depends on data or is too often to be run here.
    `start`: what is known of what it carries.
    """
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text)
    if found:
        return int(found[1])
    body, condition = loop.inside("body"), loop.inside("condition")
    state = start
    for done in range(LONGEST):
        goes_on = _made_of(condition, state)
        if not goes_on:
            return done if goes_on == 0 else None
        state = _made_of(body, state)
    return None


def _made_of(computation: Computation, argument: Known) -> Known:
    """What is known of what a computation of one argument returns."""
    return known_scalars([argument])(computation.root)


def _invariants(body: Computation, start: Known) -> Known:
    """What is known of what a loop carries in all rounds: what a round maps to itself."""
    state = start
    while isinstance(state, tuple):
        after = _made_of(body, state)
        if after == state:
            return state
        made = after if isinstance(after, tuple) else [None] * len(state)
        state = tuple(old if old == new else None for old, new in zip(state, made, strict=True))
    return None
