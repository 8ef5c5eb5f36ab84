"""Plain terms: constant parts of a gradient that are the parameters' alone, as of weight decay.

%g = add %sum, %decay ; %decay = multiply 0.1, %w         plain: every example's alike
%g = reduce add %ones over [N]                            not: a term for each row, though it holds
                                                          nothing of the rows

Of examples with as many rows each, terms that no example reaches are shared evenly; where examples
have any number of rows they are not, and nothing in a value tells a row's term from one of all.
"""

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.alignment.constant_parts import shared_terms
from hlo_surgery.passes.owners.classes import ELEMENTWISE, Followed, is_shared
from hlo_surgery.passes.owners.owners import Owners

STRAY = (
    "a term of the gradient rests on no example, and may belong to rows, of which examples have "
    "different numbers"
)
STRAY_HELP = (
    "add what is for all examples, such as weight decay, to the loss as a function of the "
    "parameters alone (of arrays with no dimension as long as there are rows), or leave it to the "
    "optimizer; a loss that is linear in what parameters make "
    "of rows needs a target or weight that belongs to them"
)
MAKING = ELEMENTWISE | {
    "stablehlo.broadcast_in_dim",
    "stablehlo.constant",
    "stablehlo.dot_general",
    "stablehlo.reduce",
    "stablehlo.reshape",
    "stablehlo.transpose",
}


def stray_reason(owners: Owners, output: Value) -> Reason | None:
    """Why a constant part of an output is refused where ids say whose rows are; None where it is
    not.
    """
    if owners.following is None:
        return None
    for value in shared_terms(owners, output):
        zero = is_splat(value, 0) or vanishes(value)
        if not (zero or is_plain(owners, value)):
            op = mlir.defining_operation(value)
            where = ("func.return", "module") if op is None else (op.name, source_line(op))
            return Reason(STRAY, *where, STRAY_HELP)
    return None


def is_plain(owners: Owners, value: Value) -> bool:
    """Whether a value is made of parameters, and of constants beside, and nothing of it has a
    dimension as long as there are rows: that may be a number for each.
    """
    rows = {
        known.term.shape[dim]
        for known in owners.classes.values()
        if isinstance(known, Followed)
        for dim in known.term.varying
    }
    behind = closure([value], _operands)
    short = all(rows.isdisjoint(mlir.shape(v)) for v in behind)
    plain = all(_is_plainly_made(owners, v) for v in behind)
    return short and plain and not behind.isdisjoint(owners.trained)


def _operands(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    return [] if op is None else mlir.operands(op)


def _is_plainly_made(owners: Owners, value: Value) -> bool:
    """Whether a value is a parameter, or made by an op that penalties are made of."""
    op = mlir.defining_operation(value)
    if op is None:
        return value in owners.trained and is_shared(owners.of(value))
    return op.name in MAKING and len(op.results) == 1
