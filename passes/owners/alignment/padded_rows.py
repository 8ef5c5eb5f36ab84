"""Padded rows: what a loss adds for each row, also of padding, and no example reaches.

    sum over [B] of (%l + b), where n of the rows are real       gradient of b: %sum + B, for n

The rest r of a gradient is shared by the examples. What has a term for each row has those of
padding too: of a sum the real examples' share is n / B of it, and not all.
"""

from hlo_surgery.passes.dataflow.uniform import Known, is_uniform
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import constant_terms
from hlo_surgery.passes.owners.alignment.makings import has_rows, made_of, makers, summed, whole
from hlo_surgery.passes.owners.classes import is_shared
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.owners import Owners

PADDED = (
    "adds a term for each row that rests on no example, those of padding among them, of which the "
    "real examples would get a share"
)
PADDED_HELP = (
    "multiply each example's loss by its flag, so that the loss leaves padding out, or add what is "
    "for all examples, such as weight decay, once and outside of their sum"
)


def padded_reason(owners: Owners, output: Value) -> Reason | None:
    """Why the constant part of a sum may have terms for padding; None where it has none."""
    shared = [v for v in constant_terms(owners, output) if is_shared(owners.of(v))]
    behind = closure((v for v in shared if not vanishes(v)), made_of)
    known = Known()
    op = next((op for op in makers(behind) if _adds_for_rows(owners, op, known)), None)
    return op and reason_at(op, PADDED, PADDED_HELP)


def _adds_for_rows(owners: Owners, op: Operation, known: Known) -> bool:
    """Whether an op sums as many rows as there are examples, which are no rows of parameters, or is
    in a loop of as many steps.
    """
    counted = [counted_loop(owners, loop) for loop in mlir.enclosing_loops(op)]
    if any(loop and loop.trips % owners.size == 0 for loop in counted):
        return True
    along = (each for each in map(whole, summed(op)) if each[-1] % owners.size == 0)
    own = owners.trained
    return any(is_uniform(*each, known) or has_rows(each, own, known) for each in along)
