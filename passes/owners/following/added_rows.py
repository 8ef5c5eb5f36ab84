"""Added rows: rows that are summed in groups, and only added up from there on, as in a table's
gradient: then it does not matter whether a group has rows of several examples.

%g = scatter 0, %ids, %rows ; %t = transpose %g ; return %t      =>  a sum over the examples
"""

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    Followed,
    is_shared,
)
from hlo_surgery.passes.owners.owners import Owners


def added_rows(owners: Owners) -> set[Value]:
    """The results of ops that sum so, as the classes are now."""
    found: set[Value] = set()
    for value, known in list(owners.classes.items()):
        op = mlir.defining_operation(value) if isinstance(known, Followed) else None
        if op is not None and len(op.results) == 1 and _is_only_added(owners, op):
            found.add(value)
    return found


def _is_only_added(owners: Owners, op: Operation) -> bool:
    """Whether an op sums, on top of nothing, what goes on as a term of sums."""
    alone = all(is_shared(owners.of(op.operands[i])) for i in linearity.initial_operands(op))
    if not alone or not linearity.sums(op, 0):
        return False
    reached = closure([op.results[0]], _made_of)
    return all(_adds(owners, user) for v in reached for user in mlir.users(v))


def _made_of(value: Value) -> list[Value]:
    return [result for user in mlir.users(value) for result in user.results]


def _adds(owners: Owners, user: Operation) -> bool:
    """Whether an op is linear in all that examples reach, or returns from main."""
    if user.name == "func.return":
        return True
    own = frozenset(i for i, v in enumerate(user.operands) if not is_shared(owners.of(v)))
    return user.name not in mlir.CONTROL_FLOW and linearity.is_linear(user, own)
