"""Plain terms: constant parts of a gradient that are the parameters' alone, as of weight decay.

%g = add %sum, %decay ; %decay = multiply 0.1, %w         plain: every example's alike
%g = reduce add %ones over [N]                            not: a term for each row, though it holds
                                                          nothing of the rows

Of examples with as many rows each, terms that no example reaches are shared evenly; where examples
have any number of rows they are not, and nothing in a value tells a row's term from one of all.
"""

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat, vanishes
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.linearity import initial_operands
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.alignment.constant_parts import constant_terms
from hlo_surgery.passes.owners.classes import ELEMENTWISE, Followed, Owners, is_shared

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
KEEPS = {"stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert"}
REDUCES = {"stablehlo.reduce", "stablehlo.dot_general"}


def stray_reason(owners: Owners, output: Value) -> Reason | None:
    """Why a constant part of an output is refused where ids say whose rows are; None where it is
    not.
    """
    if owners.following is None:
        return None
    for value in constant_terms(owners, output):
        zero = is_splat(value, 0) or vanishes(value)
        if is_shared(owners.of(value)) and not zero and not is_plain(owners, value):
            op = mlir.defining_operation(value)
            where = ("func.return", "module") if op is None else (op.name, source_line(op))
            return Reason(STRAY, *where, STRAY_HELP)
    return None


def is_plain(owners: Owners, value: Value) -> bool:
    """Whether a value is made of parameters element by element, or summed over their own
    dimensions, none of them as long as there are rows: what is as long may be a weight for each.
    """
    rows = frozenset(
        known.term.shape[dim]
        for known in owners.classes.values()
        if isinstance(known, Followed)
        for dim in known.term.varying
    )
    return _extent(owners, value, rows, {}) is not None


def _extent(
    owners: Owners, value: Value, rows: frozenset[int], known: dict[Value, bool | None]
) -> bool | None:
    """Whether all dimensions of a plain value are parameters' own; None where it is not plain."""
    if not rows.isdisjoint(mlir.shape(value)):
        return None
    if value not in known:
        op = mlir.defining_operation(value)
        own = value in owners.trained and is_shared(owners.of(value))
        known[value] = _of_op(owners, op, rows, known) if op else (True if own else None)
    return known[value]


def _of_op(
    owners: Owners, op: Operation, rows: frozenset[int], known: dict[Value, bool | None]
) -> bool | None:
    if op.name == "stablehlo.constant":
        return False
    if op.name not in ELEMENTWISE | KEEPS | REDUCES | {"stablehlo.broadcast_in_dim"}:
        return None
    found = [_extent(owners, v, rows, known) for v in op.operands]
    if any(extent is None for extent in found) or len(op.results) > 1:
        return None
    if op.name == "stablehlo.broadcast_in_dim":
        return False
    if op.name in REDUCES:
        initial = initial_operands(op)
        return True if all(x for i, x in enumerate(found) if i not in initial) else None
    return any(found)
