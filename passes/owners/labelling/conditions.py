"""Conditions: what the comparisons that a choice rests on tell of its integers.

    %r = remainder %t, 5                               -4 to 4
    select(%r < 0, %r + 5, %r)                         0 to 4: %r + 5 is made of -4 to -1

In a case, which is a condition and whether it holds, integers have narrower bounds, and so has what
is made of them element by element. Of an `and` that holds both sides do, the second in the case of
the first; of one that does not, one side does not, and a number is in what either leaves of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.bounds import Bounds
from hlo_surgery.passes.owners.labelling.integer_ops import BY_ELEMENT, Numbers, direction_of
from hlo_surgery.passes.owners.labelling.interval_ops import made_of

OPPOSITE = {"LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT", "EQ": "NE", "NE": "EQ"}
TURNED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
# How many ops behind each other are read again in a case.
DEEPEST = 6


@dataclass(frozen=True)
class Case:
    """Where it may be, and which integers have what bounds in it: [*steps, *shape] each."""

    steps: int
    outside: Callable[[Value], Bounds]
    """The bounds in every case."""
    may_be: Numbers
    narrowed: dict[Value, Bounds]


def chosen(op: Operation, steps: int, outside: Callable[[Value], Bounds], plain: Bounds) -> Bounds:
    """The bounds of a select's result, each side read in its own case, within those that it has
    otherwise.
    """
    condition, *sides = op.operands
    if mlir.shape(condition) != mlir.shape(op.results[0]) or plain.are_all_known:
        return plain
    start = Case(steps, outside, np.asarray(True), {})
    cases = [_under(start, condition, holds) for holds in (True, False)]
    ends = [_read(case, side) for case, side in zip(cases, sides, strict=True)]
    return _both(plain, _either(ends, cases))


def _under(case: Case, condition: Value, holds: bool) -> Case:
    """The case in which a condition holds, or does not, besides."""
    truth, op = _read(case, condition), mlir.defining_operation(condition)
    case = replace(case, may_be=case.may_be & (truth.high if holds else ~truth.low))
    if op is None:
        return case
    if op.name == "stablehlo.not":
        return _under(case, op.operands[0], not holds)
    if op.name in ("stablehlo.and", "stablehlo.or"):
        return _of_two(case, op, holds)
    if op.name == "stablehlo.compare" and not mlir.is_inexact(op.operands[0]):
        direction = direction_of(op)
        return _compared(case, op, direction if holds else OPPOSITE[direction])
    return case


def _of_two(case: Case, op: Operation, hold: bool) -> Case:
    """The case in which an `and` or `or` of two conditions holds, or does not."""
    first, second = op.operands
    if hold == (op.name == "stablehlo.and"):
        return _under(_under(case, first, hold), second, hold)
    cases = [_under(case, side, hold) for side in (first, second)]
    alike = set(cases[0].narrowed) & set(cases[1].narrowed)
    narrowed = {v: _either([one.narrowed[v] for one in cases], cases) for v in alike}
    return replace(case, may_be=cases[0].may_be | cases[1].may_be, narrowed=narrowed)


def _compared(case: Case, op: Operation, direction: str) -> Case:
    """The case in which two integers, or truths, compare so."""
    a, b = (_read(case, v) for v in op.operands)
    first, second = op.operands
    if a.low.dtype == np.bool_:
        case = _truth_beside(case, first, b, direction)
        return _truth_beside(case, second, a, direction)
    case = _narrowed(case, first, _beside(a, b, direction))
    return _narrowed(case, second, _beside(b, a, TURNED[direction]))


def _truth_beside(case: Case, condition: Value, other: Bounds, direction: str) -> Case:
    """What a truth is that is like another, or unlike, of which is known what it is."""
    numbers = other.numbers
    if direction not in ("EQ", "NE") or numbers is None or numbers.all() != numbers.any():
        return case
    return _under(case, condition, bool(numbers.all()) == (direction == "EQ"))


@np.errstate(over="ignore")
def _beside(a: Bounds, b: Bounds, direction: str) -> Bounds:
    """What is left of the first where it compares so with the second; where nothing is, that tells
    nothing, as no number beyond the last of its type does.
    """
    low, high = a.low, a.high
    if direction in ("LT", "LE", "EQ"):
        high = np.minimum(high, b.high)
    if direction in ("GT", "GE", "EQ"):
        low = np.maximum(low, b.low)
    if direction == "LT":
        high = np.where(high == b.high, high - 1, high)
    if direction == "GT":
        low = np.where(low == b.low, low + 1, low)
    if direction == "NE":
        high = np.where(b.known & (high == b.high), high - 1, high)
        low = np.where(b.known & (low == b.low), low + 1, low)
    return Bounds(low, high).each(lambda end: end.astype(a.low.dtype))


def _narrowed(case: Case, value: Value, found: Bounds) -> Case:
    """The case in which an integer is within some bounds."""
    inside = _both(_read(case, value), found)
    case = replace(case, narrowed={**case.narrowed, value: inside})
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.sign" or mlir.is_inexact(value):
        return case
    given = _read(case, op.operands[0])
    low = np.where(inside.low >= 0, np.maximum(given.low, inside.low), given.low)
    high = np.where(inside.high <= 0, np.minimum(given.high, inside.high), given.high)
    return _narrowed(case, op.operands[0], Bounds(low, high))


def _read(case: Case, value: Value, depth: int = DEEPEST) -> Bounds:
    """The bounds of a value in a case."""
    if value in case.narrowed:
        return case.narrowed[value]
    op, known = mlir.defining_operation(value), case.outside(value)
    if op is None or op.name not in BY_ELEMENT or not case.narrowed or not depth:
        return known
    if known.are_all_known or any(mlir.is_inexact(v) for v in op.operands):
        return known
    again = made_of(op, 0, case.steps, [_read(case, v, depth - 1) for v in op.operands])
    return known if again is None else _both(known, again)


def _both(known: Bounds, found: Bounds) -> Bounds:
    """What is within both; where that is nothing, no run is there, and the first are as good."""
    low, high = np.maximum(known.low, found.low), np.minimum(known.high, found.high)
    is_one = low <= high
    return Bounds(np.where(is_one, low, known.low), np.where(is_one, high, known.high))


def _either(each: Sequence[Bounds], cases: Sequence[Case]) -> Bounds:
    """What is within the bounds of either of two cases, where that may be."""
    (a, b), (first, second) = each, (case.may_be for case in cases)
    alone = [first & ~second, second & ~first]
    low = np.select(alone, [a.low, b.low], np.minimum(a.low, b.low))
    high = np.select(alone, [a.high, b.high], np.maximum(a.high, b.high))
    return Bounds(low, high)
