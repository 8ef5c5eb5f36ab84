"""Constant parts: whether a sum over the examples, r + sum of c_b, may have an r that is not zero.

%g = dot_general %x, %l              =>  none
%h = add %g, %decay                  =>  %decay

It is followed back through the linear ops to the sites, and to whatever loops and branches carry.
"""

from hlo_surgery import mlir
from hlo_surgery.mlir import Operation, Value
from hlo_surgery.passes.constants import is_splat
from hlo_surgery.passes.control_flow import ties
from hlo_surgery.passes.lattice import Axes, Shared, Summed
from hlo_surgery.passes.linearity import initial_operands, is_linear


def has_constant_part(axes: Axes, value: Value) -> bool:
    """Whether something is added to the examples' own terms, as far as the ops show."""
    pending, seen = [value], set[Value]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(axes.of(current), Shared) and not is_splat(current, 0):
            return True
        if isinstance(axes.of(current), Summed):
            pending += _terms(axes, current)
    return False


def _terms(axes: Axes, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return ties(value)
    return [op.operands[i] for i in added(axes, op)]


def added(axes: Axes, op: Operation) -> frozenset[int]:
    """The operands whose constant parts are those of the sum that an op makes; at a site, what it sums on top of."""
    summed = frozenset(i for i, c in enumerate(axes.at(op)) if isinstance(c, Summed))
    if not summed:
        return frozenset(initial_operands(op))
    return frozenset(i for i in range(len(op.operands)) if is_linear(op, summed | {i}))
