"""Equal fusions: libtpu compiles those of one form once, by one name; this tells which they are.

Two instructions have one form if they, and what they call, are the same but for names, with the
same estimate.
"""

import re
from typing import Any

from hlo_surgery.targets.program import Computation, Instruction

NOT_OF_THE_FORM = re.compile(r", (?:metadata|backend_config|frontend_attributes|sharding)=.*", re.S)
CALLED = re.compile(r"(calls|to_apply)=%?[\w.\-]+")


def form_of(instruction: Instruction) -> Any:
    """What is equal for instructions that are compiled once."""
    operands = tuple(each.shape for each in instruction.operands)
    return operands, instruction.estimated_cycles, _form(instruction, ())


def _form(instruction: Instruction, operands: tuple[int, ...]) -> Any:
    text = CALLED.sub("", NOT_OF_THE_FORM.sub("", instruction.text))
    argument = instruction.argument if instruction.opcode in ("parameter", "constant") else ""
    inside = tuple(_body(instruction.known[name]) for _, name in instruction.calls)
    return instruction.opcode, instruction.shape, argument, operands, text, inside


def _body(computation: Computation) -> Any:
    places = {each: place for place, each in enumerate(computation.instructions)}
    return tuple(
        _form(each, tuple(places[o] for o in each.operands)) for each in computation.instructions
    )
