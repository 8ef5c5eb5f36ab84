"""Verdicts: whether an output is a sum of the examples' own, and if not, why."""

from dataclasses import replace

from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.axes.classes import Batched, Mixed, Shared
from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir.errors import MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Value

TWO_ORDERS = "parts of the batch lie in two orders"


def undivided_reason(state: State, output: Value) -> Reason | None:
    """Why examples have no share of their own in an output; None where they have."""
    if len(set(state.batch)) < len(state.batch):
        return Reason(TWO_ORDERS, "func.func", "module")
    match state.of(output):
        case Mixed(reason):
            return reason
        case Batched(term=term, summed=summed):
            return as_term(term) if term and summed else None
        case Shared(term=term):
            return as_term(term) if term and not vanishes(output) else None


def as_term(reason: Reason) -> Reason:
    """Why a constant of the batch is refused as a term of a gradient."""
    if MIXING_HELP not in reason.help:
        return reason
    help = reason.help.replace(MIXING_HELP, reasons.TERM_HELP)
    return replace(reason, why=f"{reasons.TERM}: {reason.why}", help=help)
