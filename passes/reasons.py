"""Reasons: the class of a value that an op mixes, with the op's source line."""

from hlo_surgery.errors import MIXING_HELP, Reason
from hlo_surgery.mlir import Operation
from hlo_surgery.passes.lattice import Mixed
from hlo_surgery.passes.source_lines import source_line


def mixed(op: Operation, why: str, unknown: bool = False, help: str = MIXING_HELP) -> Mixed:
    """The class of a value that this op mixes, or of which nothing is known."""
    return Mixed(Reason(why, op.name, source_line(op), help), unknown)
