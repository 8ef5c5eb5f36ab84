"""Example rows: a gradient that no example reaches, of a parameter with perhaps a row for each.

    mean(sum(x + e, 1)), e : [B, D] a parameter
        =>  the gradient of e is 1/B everywhere, and holds no example

Row b of what meets the examples row by row is example b's. Where e is met in a way that is not
linear, row b of its gradient rests on example b and shows that. Where it is met linearly nothing of
the meeting is left in the gradient, so that a row for each example looks like a constant that all
share; it is refused, unless it is zero either way. So is what is added to the examples' own terms
where rows that parameters reach are moved before they meet the examples, as in x + e[::-1].
"""

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.classes import is_shared
from hlo_surgery.passes.owners.owners import Owners

WHY = (
    "no example reaches this gradient, and it may have a row for each: whether row b is example "
    "b's is not shown"
)
GROUPED = (
    "rows of a parameter meet some of the examples each, and a constant is added to this gradient: "
    "whether it is theirs alone is not shown"
)
HELP = (
    "pass the rows as a batch argument (batch_argnums), and not as a parameter; "
    "or, if the parameter's size is that of the batch by coincidence, use a batch of another size"
)
# Of rows that groups of examples meet, of which each may have one.
LOOK_UP_HELP = (
    "let each example look up its row, as in e[number] with a number for each example as a batch "
    "argument (batch_argnums); or ask for the statistics of other parameters"
)


def example_rows(owners: Owners, block: Block, gradient: Value) -> Reason | None:
    """Why a gradient of `block` is refused: its rows may be the examples', without a sign of it."""
    is_whole, is_grouped = is_shared(owners.of(gradient)), gradient in owners.grouped
    if not holds_constant(owners, gradient):
        return None
    if owners.moved:
        return owners.moved
    op = mlir.defining_operation(gradient) or mlir.return_operation(block)
    along = any(v in owners.beside and v.type == gradient.type for v in block.arguments)
    if is_grouped or (along and not is_whole):
        return reason_at(op, GROUPED, LOOK_UP_HELP)
    of_size = owners.size in mlir.shape(gradient)
    if not is_whole or not (along or of_size):
        return None
    if vanishes(gradient):
        return None
    return reason_at(op, WHY, HELP if of_size else LOOK_UP_HELP)
