"""Stacks: the values of a loop's operands at all its steps, along a dimension of their own.

What is sliced from a stack already is taken from there; any other value is written to a new stack,
step by step, in the same order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hlo_surgery.passes.dataflow.numbers import Numbers, is_permutation, values_over
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.carried import Part, stacked
from hlo_surgery.passes.terms.axes import Axes

Counters = dict[Value, Numbers]


@dataclass(frozen=True)
class Order:
    """Which place in a stack a step takes: `index` in the loop's body, and all its `numbers`, which
    tell orders apart.
    """

    index: Value = field(compare=False)
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Stacked:
    """Where a value's steps are: along `dim` of a stack."""

    stack: Value
    dim: int


def order_of(index: Value, counters: Counters, size: int) -> Order | None:
    """The order of an index that takes each of so many places once."""
    numbers = values_over(index, counters)
    if numbers is None or not is_permutation(numbers, size):
        return None
    return Order(index, tuple(numbers.tolist()))


def common_order(loop: Operation, values: Iterable[Value], counters: Counters) -> Order | None:
    """The order of the first stack that one of these is sliced from, or of a counter from 0."""
    found = (sliced[1] for v in values if (sliced := _sliced(loop, v, counters)))
    counted = (order_of(c, counters, len(numbers)) for c, numbers in counters.items())
    return next(found, None) or next((order for order in counted if order), None)


def _sliced(loop: Operation, value: Value, counters: Counters) -> tuple[Stacked, Order] | None:
    """The stack outside the loop of which a value is one slice, without that dimension."""
    op: Operation | None = None
    for name in ("stablehlo.reshape", "stablehlo.dynamic_slice"):
        op = mlir.defining_operation(op.operands[0] if op else value)
        if op is None or op.name != name:
            return None
    assert op is not None
    stack, whole = op.operands[0], mlir.shape(op.operands[0])
    cut = [d for d, size in enumerate(mlir.shape(op.results[0])) if size != whole[d]]
    is_inside = any(mlir.is_same(each, loop) for each in mlir.loops_around(stack))
    if len(cut) != 1 or is_inside or mlir.shape(value) != (*whole[: cut[0]], *whole[cut[0] + 1 :]):
        return None
    order = order_of(op.operands[1 + cut[0]], counters, whole[cut[0]])
    return order and (Stacked(stack, cut[0]), order)


def step_stacks(
    axes: Axes,
    loop: Operation,
    values: Iterable[Value],
    order: Order,
    counters: Counters,
    reached: set[Value],
) -> tuple[Operation, dict[Value, Stacked]]:
    """Where the steps of these values are, in this order, and the loop, which is rebuilt so that it
    stacks those that nothing holds yet.
    """
    each = {v: _sliced(loop, v, counters) for v in values}
    known = {v: s[0] for v, s in each.items() if s and s[1] == order}
    new = [v for v in each if v not in known]
    if not new:
        return loop, known
    parts = [Part(v, order.index, len(order.numbers)) for v in new]
    renewed, made = stacked(axes, loop, parts, sets=[reached])
    return renewed, known | {v: Stacked(stack, 0) for v, stack in zip(new, made, strict=True)}
