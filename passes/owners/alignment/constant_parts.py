"""Constant parts: whether a sum over the examples, r + sum of c_b, may have an r that is not zero.

%g = dot_general %x, %l              =>  none
%h = add %g, %decay                  =>  %decay

It is followed back through the linear ops to the sites, and to whatever loops and branches carry.
"""

from functools import partial

from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.linearity import initial_operands, is_linear
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    has_nobodys,
    has_owners,
    is_shared,
    is_sum,
    owned_operands,
)
from hlo_surgery.passes.owners.owners import Owners


def holds_constant(owners: Owners, gradient: Value) -> bool:
    """Whether a gradient that no example has rows of is, or has, a constant that is not zero."""
    known = owners.of(gradient)
    if is_sum(known):
        return has_constant_part(owners, gradient)
    return is_shared(known) and not vanishes(gradient)


def has_constant_part(owners: Owners, value: Value) -> bool:
    """Whether something is added to the examples' own terms, as far as the ops show."""
    return not all(map(vanishes, shared_terms(owners, value)))


def may_hold_constant(owners: Owners, gradient: Value) -> bool:
    """Whether a gradient may be, or have, a constant, also among rows of which examples own some
    only, wherever loops and branches add these up.
    """
    if holds_constant(owners, gradient):
        return True
    terms = constant_terms(owners, gradient)
    makers = [mlir.defining_operation(v) for v in terms if is_sum(owners.of(v))]
    ops = [op for op in makers if op is not None and op.name not in mlir.CONTROL_FLOW]
    added = [owners.of(v) for v in terms] + [c for op in ops for c in owners.at(op)]
    return any(has_owners(known) and has_nobodys(known) for known in added)


def constant_terms(owners: Owners, value: Value) -> set[Value]:
    """What is added up in a value, among it all that no example reaches."""
    return closure([value], partial(next_terms, owners))


def shared_terms(owners: Owners, value: Value) -> list[Value]:
    """What is added up in a value that no example reaches, zeros among it."""
    return [v for v in constant_terms(owners, value) if is_shared(owners.of(v))]


def next_terms(owners: Owners, value: Value) -> list[Value]:
    """What is added up in a sum by the op that makes it, or by all steps of the loop."""
    if not is_sum(owners.of(value)):
        return []
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return ties(value)
    return [op.operands[i] for i in constant_places(owners, op)]


def constant_places(owners: Owners, op: Operation) -> frozenset[int]:
    """The operands with the constant parts of an op's sum; at a site, what it sums on top of."""
    summed = frozenset(i for i, c in enumerate(owners.at(op)) if is_sum(c))
    if not summed:
        return frozenset(initial_operands(op))
    return frozenset(i for i in range(len(op.operands)) if is_linear(op, summed | {i}))


def terms_of(owners: Owners, value: Value) -> list[Value]:
    """The sums that a value is made of or passed on as, and the examples' own values of which it
    has whatever constants they hold.
    """
    op = _made_by(value)
    if op is not None and not is_linear(op, owned_operands(owners.at(op))):
        return sums_of(owners, value)
    classes = ((v, owners.of(v)) for v in _made_of(value))
    return [v for v, known in classes if is_sum(known) or has_owners(known)]


def sums_of(owners: Owners, value: Value) -> list[Value]:
    """The sums that a value is made of or passed on as."""
    return [v for v in _made_of(value) if is_sum(owners.of(v))]


def _made_by(value: Value) -> Operation | None:
    """The op that makes a value, if it is not passed on through a loop or branch."""
    op = mlir.defining_operation(value)
    return None if op is None or op.name in mlir.CONTROL_FLOW else op


def _made_of(value: Value) -> list[Value]:
    op = _made_by(value)
    return list(ties(value)) if op is None else mlir.operands(op)
