"""In place: which results of a scheduled instruction lie in the memory of one of its operands."""

import re
from collections.abc import Iterator

from hlo_surgery.targets.scheduled.program import Computation, Instruction, Program

# What writes into its first operand, and which operand it writes.
UPDATES = {"dynamic-update-slice": 1, "scatter": -1}


def in_place(instruction: Instruction, program: Program) -> dict[int, int]:
    """The operand that each result is written over, both from 0; a result of none is left out.

    The compiler for TPU says so in its own words, others by an attribute, or not at all where a
    fusion ends in an update of a slice, as loops over stacked arrays do.
    """
    listed = re.search(r'"aliasing_operands":\{"lists":\[(.+?)\]\}\}', instruction.text)
    if listed:
        groups = [
            list(map(int, re.findall(r"\d+", group)))
            for group in re.findall(r"\[([^\[\]]+)\]", f"[{listed[1]}]")
        ]
        count = len(instruction.operands)
        # Counted through operands and results; a group of operands alone says that they are one
        # buffer already.
        return {i - count: min(group) for group in groups for i in group if i >= count > min(group)}
    given = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", instruction.text)
    if given:
        pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", given[1])
        return {int(result or 0): int(operand) for result, operand in pairs}
    if instruction.opcode in UPDATES:
        return {0: 0}
    called = instruction.called("calls") if instruction.opcode == "fusion" else None
    return dict(_written(program.computations[called])) if called else {}


def _written(fused: Computation) -> Iterator[tuple[int, int]]:
    """The parameters of a fusion that its results update."""
    names = fused.root.operands if fused.root.opcode == "tuple" else [fused.root.name]
    for place, root in enumerate(origin(fused, name) for name in names):
        if root.opcode in UPDATES:
            written = origin(fused, root.operands[0])
            if written.opcode == "parameter":
                yield place, int(written.argument)


def origin(computation: Computation, name: str) -> Instruction:
    """The instruction whose value bears this name, behind bitcasts."""
    instruction = computation.named[name]
    while instruction.opcode == "bitcast":
        instruction = computation.named[instruction.operands[0]]
    return instruction
