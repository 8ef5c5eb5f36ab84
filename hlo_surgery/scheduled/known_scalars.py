"""Known scalars: the integers of a scheduled program that do not depend on its arguments, such as loop counters."""

import operator
import re
from collections.abc import Callable, Sequence

from hlo_surgery.scheduled.program import Computation, Instruction, Program
from hlo_surgery.scheduled.shapes import Array

# An integer, None where it is not known, or the elements of a tuple.
Known = int | None | tuple["Known", ...]

COPIES = frozenset(["copy", "bitcast", "convert", "reshape"])
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
}


def known_scalars(program: Program, computation: Computation, arguments: Sequence[Known]) -> dict[str, Known]:
    """What is known of each instruction's value, given what is known of the arguments."""
    values: dict[str, Known] = {}
    for each in computation.instructions:
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
    if not isinstance(instruction.shape, Array) or instruction.shape.dims:
        return None
    if opcode == "constant":
        return int(instruction.argument) if re.fullmatch(r"-?\d+", instruction.argument) else None
    if opcode == "fusion":
        inside = program.computations[instruction.called("calls") or ""]
        return known_scalars(program, inside, operands)[inside.root.name]
    if opcode in COPIES:
        return operands[0]
    if opcode in ARITHMETIC and len(operands) == 2 and isinstance(operands[0], int) and isinstance(operands[1], int):
        return ARITHMETIC[opcode](operands[0], operands[1])
    return None
