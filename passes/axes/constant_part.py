"""The constant part: whether a sum over the examples, r + sum of c_b, may have an r that is not zero.

%g = dot_general %x, %l              =>  none
%h = add %g, %decay                  =>  %decay

It is followed back through the linear ops to the sites, and to whatever loops and branches carry.
"""

from functools import partial

from hlo_surgery.passes.axes.classes import Shared, is_sum
from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.linearity import initial_operands, is_linear
from hlo_surgery.passes.ir.mlir import Value


def holds_constant(state: State, gradient: Value) -> bool:
    """Whether a gradient is, or has, a constant that is not zero."""
    known = state.of(gradient)
    if is_sum(known):
        return has_constant_part(state, gradient)
    return isinstance(known, Shared) and not vanishes(gradient)


def has_constant_part(state: State, value: Value) -> bool:
    """Whether something is added to the examples' own terms, as far as the ops show."""
    return not all(map(vanishes, shared_terms(state, value)))


def shared_terms(state: State, value: Value) -> list[Value]:
    """What is added up in a value that no example reaches, zeros among it."""
    terms = closure([value], partial(_next_terms, state))
    return [v for v in terms if isinstance(state.of(v), Shared)]


def _next_terms(state: State, value: Value) -> list[Value]:
    """What is added up in a sum by the op that makes it, or by all steps of the loop."""
    if not is_sum(state.of(value)):
        return []
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW or op.name == mlir.BARRIER:
        return ties(value)
    summed = frozenset(i for i, c in enumerate(state.at(op)) if is_sum(c))
    if not summed:
        return [op.operands[i] for i in initial_operands(op)]
    count = len(op.operands)
    return [op.operands[i] for i in range(count) if is_linear(op, summed | {i})]
