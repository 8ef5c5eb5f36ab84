"""Verdicts: whether an output has a share for each example, and if not, why."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import BOTH_HELP, MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.alignment.apart import apart_reason, uneven_reason
from hlo_surgery.passes.owners.alignment.constant_parts import sums_of
from hlo_surgery.passes.owners.alignment.example_rows import example_rows
from hlo_surgery.passes.owners.classes import (
    PICKING,
    Crossed,
    Followed,
    Mixed,
    Owned,
    Paired,
    Summed,
    disagreement,
    has_owners,
    is_first_devices,
    is_sum,
)
from hlo_surgery.passes.owners.contributions.lost_rows import HELP, ROWS, met_rows
from hlo_surgery.passes.owners.following.plain_terms import stray_reason
from hlo_surgery.passes.owners.offsets import is_uneven, uneven_at
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.stand_ins import stand_in_reason

TERM = (
    "a constant made of the whole batch is a term of the gradient, of which no example's share "
    "is known"
)
BOTH = "a sum over the examples goes into this gradient as it is, and as a constant besides"
TERM_HELP = (
    "compute the constant before, and pass it as an argument of its own, as what is known to all "
    "examples; "
    "or ask for the statistics of other parameters"
)
# Of counts, as of each expert's rows.
COUNTS_HELP = (
    "where rows are counted because they are routed by what they hold, as among experts, pass "
    "segments=..., which says whose each row is, and mark the counts with hs.constant; else, "
    f"{TERM_HELP}"
)


BY_ROW = "this gradient has rows of examples that are told apart by ids, and is no sum over them"
BY_ROW_HELP = "ask for the statistics of parameters, and for gradients by rows from jax.grad"


def as_term(data: Reason) -> Reason:
    """Why data of the whole batch is refused as a term of a gradient."""
    if MIXING_HELP not in data.help:
        return data
    if data.op in PICKING:
        help = data.help.replace(MIXING_HELP, TERM_HELP)
    else:
        help = COUNTS_HELP if data.op == "stablehlo.scatter" else TERM_HELP
    return replace(data, why=f"{TERM}: {data.why}", help=help)


def undivided_reason(
    owners: Owners, block: Block, gradient: Value, asked: Collection[Value]
) -> Reason | None:
    """Why a gradient of `block` is no sum of the examples' own; None where it is.

    `asked`: what all gradients that are asked for are made of.
    """
    reason = mixing_reason(owners, gradient) or example_rows(owners, block, gradient)
    reason = reason or read_otherwise(owners, gradient, asked)
    reason = reason or stray_reason(owners, gradient)
    reason = reason or stand_in_reason(owners, block, gradient)
    reason = reason or uneven_reason(owners, block, gradient)
    return reason or apart_reason(owners, block, gradient)


def undivided_loss_reason(owners: Owners, block: Block, loss: Value) -> Reason | None:
    """Why a loss is no sum of the examples' own; None where it is."""
    reason = mixing_reason(owners, loss) or stray_reason(owners, loss)
    reason = reason or stand_in_reason(owners, block, loss)
    reason = reason or uneven_reason(owners, block, loss)
    return reason or apart_reason(owners, block, loss)


def read_otherwise(owners: Owners, output: Value, asked: Collection[Value]) -> Reason | None:
    """Why a sum that an output is made of is no sum: on the way to what is asked for, it was taken
    as a constant.

    Where the user has asked for what is mixed to count as constants, sums may be both, but for one
    that goes on with an example's row: elsewhere it was that row.
    """
    behind = closure([output], partial(_taken_as_sums, owners)) if owners.data else set[Value]()
    both = (v for v in behind if v in owners.data and _is_one(owners, v))
    read = next((v for v in both if _scales(owners, v, asked)), None)
    if read is None:
        return None
    reason = owners.data[read]
    if owners.contributions or read not in owners.trained:
        return as_term(reason)
    return replace(reason, why=f"{BOTH}: {reason.why}", help=BOTH_HELP)


def _scales(owners: Owners, value: Value, asked: Collection[Value]) -> bool:
    """Whether an op on the way to what is asked for took a sum as something else."""
    users = [op for op in mlir.users(value) if any(result in asked for result in op.results)]
    taken = [zip(op.operands, owners.at(op), strict=False) for op in users]
    return any(v == value and not is_sum(known) for pairs in taken for v, known in pairs)


def _is_one(owners: Owners, value: Value) -> bool:
    """Whether a value is a sum; in contributions, one that may be an example's row as well."""
    known = owners.of(value)
    rows = isinstance(known, Summed) and known.instead is not None and has_owners(known.instead)
    return rows if owners.contributions else is_sum(known)


def _taken_as_sums(owners: Owners, value: Value) -> list[Value]:
    op, sums = mlir.defining_operation(value), sums_of(owners, value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return sums
    pairs = zip(op.operands, owners.at(op), strict=True)
    return [v for v, known in pairs if is_sum(known)]


def mixing_reason(owners: Owners, output: Value) -> Reason | None:
    """Why the examples' shares of an output are not known; None where they are."""
    if owners.contributions and (met := met_rows(owners, output)):
        return met
    match owners.of(output):
        case Mixed(reason):
            return reason
        case Followed() | Paired():
            return Reason(BY_ROW, *_where(output), BY_ROW_HELP)
        case Crossed():
            return Reason(ROWS, "func.return", "module", HELP)
        case Summed(_, data):
            return data and as_term(data)
        case Owned(data=data) as known:
            op = mlir.defining_operation(output)
            if op and is_first_devices(op) and has_owners(owners.of(output)):
                return disagreement(op)
            if is_uneven(owners, known):
                return _uneven(output)
            return as_term(data) if data and not vanishes(output) else None


def _where(output: Value) -> tuple[str, str]:
    op = mlir.defining_operation(output)
    return ("func.return", "module") if op is None else (op.name, source_line(op))


def _uneven(output: Value) -> Reason:
    op = mlir.defining_operation(output)
    assert op is not None
    return uneven_at(op).reason
