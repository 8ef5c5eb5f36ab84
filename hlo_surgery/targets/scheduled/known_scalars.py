"""Known scalars: a scheduled program's integers that no argument decides, such as loop counters."""

import operator
import re
from collections.abc import Callable, Collection, Sequence

from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program
from hlo_surgery.targets.scheduled.shapes import Array

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
