"""Padded rows: what a loss adds for each row, also of padding, and no example reaches.

    sum over [B] of (%l + b), where n of the rows are real       gradient of b: %sum + B, for n

The rest r of a gradient is shared by the examples. What has a term for each row has those of
padding too: of a sum the real examples' share is n / B of it, and not all.
"""

import math
from itertools import chain

from hlo_surgery.passes.dataflow.uniform import Known, is_uniform
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import shared_terms
from hlo_surgery.passes.owners.alignment.makings import has_rows, made_of, makers, summed
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
    known = Known()
    for term in (v for v in shared_terms(owners, output) if not vanishes(v)):
        behind = makers(closure([term], made_of))
        sizes = {op: _rows_added(owners, op, known) for op in behind}
        if math.prod(sizes.values()) % owners.size == 0:
            op = next(op for op, size in sizes.items() if size != 1)
            return reason_at(op, PADDED, PADDED_HELP)
    return None


def _rows_added(owners: Owners, op: Operation, known: Known) -> int:
    """How many rows an op sums, which are no rows of parameters, or a loop adds up step by step."""
    if op.name == "stablehlo.while":
        loop = counted_loop(owners, op)
        return loop.trips if loop else owners.size
    counts: dict[Value, int] = {}
    for each in chain.from_iterable(summed(op)):
        if is_uniform(*each, known) or has_rows(each, owners.trained, known):
            counts[each[0]] = counts.get(each[0], 1) * each[-1]
    return max(counts.values(), default=1)
