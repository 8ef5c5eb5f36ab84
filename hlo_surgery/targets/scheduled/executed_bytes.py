"""Executed bytes: what one run of a scheduled instruction reads from main memory and writes there.

Each operand is read once and each result is written once; of an array that is sliced, gathered from
or updated in place, only the part. What stays on the chip, and what a fusion computes on its way,
moves nothing.
"""

from typing import Any

from hlo_surgery.targets.scheduled.executed_flops import library
from hlo_surgery.targets.scheduled.in_place import UPDATES, origin
from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program
from hlo_surgery.targets.scheduled.shapes import Array, Shape, arrays

FREE = (
    *(
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "while",
        "call",
        "conditional",
        "opt-barrier",
    ),
    *("after-all", "add-dependency", "partition-id", "replica-id"),
)
READS_PART = frozenset(["dynamic-slice", "slice", "gather"])
COPIES = frozenset(["copy-start", "slice-start", "dynamic-slice-start"])
MAIN = 0


def moved_bytes(program: Program, computation: Computation, instruction: Instruction) -> int:
    """The bytes of one run; none for what a loop or a call runs."""
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith(("-done", "-update")):
        return 0
    if opcode in COPIES:
        target, source = copied(instruction)
        return target.bytes * [target.space, source.space].count(MAIN)
    operands = [computation.named[name].shape for name in instruction.operands]
    if opcode == "fusion":
        inside = program.computations[instruction.called("calls") or ""]
        given = zip(inside.parameters, operands, strict=True)
        return sum(_read_inside(inside, each, shape) for each, shape in given) + _made_inside(
            inside, instruction.shape
        )
    shape, returns_operands = (
        instruction.shape,
        opcode.endswith("-start") and opcode != "all-reduce-start",
    )
    if returns_operands and not isinstance(shape, Array):
        shape = shape[1]
    if library(instruction) and not isinstance(shape, Array):
        # The last is a workspace, of which it is not known how much is used.
        shape = shape[:-1]
    return sum(_read(instruction, *each) for each in enumerate(operands)) + _made(
        computation, instruction.name, shape
    )


def copied(start: Instruction) -> tuple[Array, Array]:
    """The result of an asynchronous copy, and the array that it copies, or copies a part of."""
    shape: Any = start.shape
    return (shape[0], shape[1]) if start.opcode == "copy-start" else (shape[1], shape[0][0])


def _main_bytes(shape: Shape) -> int:
    return sum(array.bytes for array in arrays(shape) if array.space == MAIN)


def _all_bytes(shape: Shape) -> int:
    return sum(array.bytes for array in arrays(shape))


def _read(reader: Instruction, place: int, operand: Shape) -> int:
    """What an instruction reads of one operand."""
    if place == 0 and reader.opcode in UPDATES:
        return 0
    whole = _main_bytes(operand)
    return (
        min(whole, _all_bytes(reader.shape))
        if place == 0 and reader.opcode in READS_PART
        else whole
    )


def _read_inside(fused: Computation, parameter: Instruction, operand: Shape) -> int:
    """What a fusion reads of one operand, by those that use it."""
    names, parts = [parameter.name], 0
    for name in names:
        for user in fused.users.get(name, []):
            if user.opcode == "bitcast":
                names.append(user.name)
            else:
                parts += sum(
                    _read(user, i, operand) for i, used in enumerate(user.operands) if used == name
                )
    return min(_main_bytes(operand), parts)


def _made(computation: Computation, name: str, shape: Shape) -> int:
    """What is written for a result; where one is scattered into, the part is read before."""
    maker = origin(computation, name)
    if maker.opcode not in UPDATES or not _main_bytes(shape):
        return _main_bytes(shape)
    part = _all_bytes(computation.named[maker.operands[UPDATES[maker.opcode]]].shape)
    return 2 * part if maker.opcode == "scatter" else part


def _made_inside(fused: Computation, shape: Shape) -> int:
    if isinstance(shape, Array) or fused.root.opcode != "tuple":
        return _made(fused, fused.root.name, shape)
    return sum(_made(fused, *each) for each in zip(fused.root.operands, shape, strict=True))
