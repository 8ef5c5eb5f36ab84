"""Verdicts: whether an output has a share for each example, and if not, why."""

from hlo_surgery.passes.example_axes.alignment.batch_constants import as_term
from hlo_surgery.passes.example_axes.alignment.example_rows import example_rows
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.classes import Crossed, Mixed, Owned, Owners, Summed
from hlo_surgery.passes.owners.contributions.lost_rows import HELP, ROWS, unclear
from hlo_surgery.passes.owners.offsets import UNEVEN, covers
from hlo_surgery.passes.owners.words import Words


def undivided_reason(owners: Owners, block: Block, gradient: Value) -> Reason | None:
    """Why a gradient of `block` is no sum of the examples' own; None where it is."""
    return mixing_reason(owners, gradient) or example_rows(Words(owners), block, gradient)


def mixing_reason(owners: Owners, output: Value) -> Reason | None:
    """Why the examples' shares of an output are not known; None where they are."""
    notes, known = owners.contributions, owners.of(output)
    lost = unclear(owners, notes, output) if notes else None
    if lost and not isinstance(known, Mixed):
        return lost
    match known:
        case Mixed(reason):
            return reason
        case Crossed():
            return Reason(ROWS, "func.return", "module", HELP)
        case Summed(_, data):
            return data and as_term(data)
        case Owned(labels, data, offset):
            if offset and not covers(labels, owners.size):
                return _uneven(output)
            return data and as_term(data)


def _uneven(output: Value) -> Reason:
    op = mlir.defining_operation(output)
    assert op is not None
    return Reason(UNEVEN, op.name, source_line(op))
