"""Verdicts: whether an output is a sum of the examples' own, and if not, why."""

from collections.abc import Collection
from dataclasses import replace

from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.axes.classes import Batched, Mixed, Shared
from hlo_surgery.passes.axes.constant_part import (
    has_rows_of_a_parameter,
    is_met_singly,
    unseen_rows,
)
from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.ir.source_lines import reason_at, source_line

RETURNS = ("func.return", "stablehlo.return")
TWO_ORDERS = "parts of the batch lie in two orders"


BY_ROW = (
    "no example reaches this part of a gradient, and its parameter may have a row for each: "
    "whether row b is example b's is not shown"
)
BY_ROW_HELP = "pass a parameter with a row for each example as a batch argument"


SINGLY = (
    "no example reaches this gradient, and its parameter meets examples one by one: whose part is "
    "how much is not shown"
)
SINGLY_HELP = "take all examples at once, by jax.vmap; or ask for other gradients"


UNSEEN = (
    "a part of this gradient rests on no example, and may have a term for each: the module lacks "
    "what none of its outputs needs, which would show it"
)
UNSEEN_HELP = (
    "let the module show all of the loss: return it with the gradients, as jax.value_and_grad "
    "does; and pass what has a row for each example (a dropout mask, a weight) as a batch argument"
)


def unseen_reason(
    state: State, block: Block, gradients: Collection[int], size: int, output: Value
) -> Reason | None:
    """Why the constant part of an output may have a term for each example; None where it has not.
    To be asked of a module that may lack what none of its outputs needs.
    """
    rows = unseen_rows(state, block, gradients, size, output)
    if rows is None:
        return None
    users = [op for op in mlir.users(rows) if op.name not in RETURNS]
    op = users[0] if users else mlir.defining_operation(rows)
    if op is None:
        return Reason(UNSEEN, "func.func", "module", UNSEEN_HELP)
    return reason_at(op, UNSEEN, UNSEEN_HELP)


def undivided_reason(state: State, block: Block, output: Value) -> Reason | None:
    """Why examples have no share of their own in an output of a block; None where they have."""
    reason = _by_class(state, output)
    if reason is None and has_rows_of_a_parameter(state, block, output):
        return _at(output, BY_ROW, BY_ROW_HELP)
    if reason is None and is_met_singly(state, block, output):
        return _at(output, SINGLY, SINGLY_HELP)
    return reason


def _at(output: Value, why: str, help: str) -> Reason:
    op = mlir.defining_operation(output)
    where = "module" if op is None else source_line(op)
    return Reason(why, "func.return" if op is None else op.name, where, help)


def _by_class(state: State, output: Value) -> Reason | None:
    if len(set(state.batch)) < len(state.batch):
        return Reason(TWO_ORDERS, "func.func", "module")
    match state.of(output):
        case Mixed(reason):
            return reason
        case Batched(term=term, summed=summed, at=at):
            return as_term(term) if term and (summed or at) else None
        case Shared(term=term):
            return as_term(term) if term and not vanishes(output) else None


def as_term(reason: Reason) -> Reason:
    """Why a constant of the batch is refused as a term of a gradient."""
    if MIXING_HELP not in reason.help:
        return reason
    help = reason.help.replace(MIXING_HELP, reasons.TERM_HELP)
    return replace(reason, why=f"{reasons.TERM}: {reason.why}", help=help)
