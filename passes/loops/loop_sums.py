"""Loop sums: given sums of one block, the loop in it that adds them up, and what its steps add.

    %r = while (%c = %zero) { add %c, %u } ; %g = multiply %r, %scale       =>  %u, multiply

A loop in each step may add to the sum in its place, which is handed on to it:

    %r = while (%c = %zero) { %s = while (%d = %c) { add %d, %u } }         =>  %s, and of it %u

Scanned gradients: given a gradient that a loop stacks by slices, the update in its body instead.

    %r = while (%c) { %u = transpose %site ; %n = dynamic_update_slice %c, %u, %i ; return %n }
        =>  %u

A scan over layers stacks the gradients of the layers so. If each slice is written once, an
elementwise statistic of the stack is the stack of the statistics, which the same loop can write:
nothing of the size of B stacks is needed.

Carried: a loop, or loops within each other, that carry more, by JAX functions.

%r = while (%c) { .. }   =>   %r, %s = while (%c, %d = start()) { .. ; go_on(%d, %x) }
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.axes.state import Shared, is_sum
from hlo_surgery.passes.dataflow.ancestors import is_splat, ties
from hlo_surgery.passes.emit.rebuild import add_carries, extend_results, extend_return
from hlo_surgery.passes.emit.splice import STACK, Replacement, Scope, splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of
from hlo_surgery.passes.ir.mlir import Block, Operation, Operations, Value, Values, closure
from hlo_surgery.passes.terms.epilogue import Reading, epilogue
from hlo_surgery.passes.terms.steps import Axes


@dataclass(frozen=True)
class LoopSums:
    """How sums of a block are made of what a loop in it adds up.

    `step`: the number of the step, of `trips`, in the body. `added`: what a step adds, by result of
    the loop; `handed_on`: those of it that a loop in the step results in, which goes on from the
    sum, and whose own steps' alone it stands for. `tail`: the ops from the results to the sums of
    the block, in order. `constants`: results that are taken as constants, such as a sum of weights,
    and `held` the ops behind the loop that make constants for the tail.
    """

    loop: Operation
    step: Value
    trips: int
    added: dict[Value, Values]
    handed_on: set[Value]
    tail: Operations
    constants: Values
    held: Operations

    @property
    def body(self) -> Block:
        """What a step computes."""
        return mlir.blocks(self.loop)[1]

    @property
    def values(self) -> Values:
        """All that a step adds."""
        return [value for values in self.added.values() for value in values]


def loop_sums(axes: Axes, sums: Values, going_on: set[Value]) -> LoopSums | None:
    """How these sums, and nothing besides, are made by one loop of their block; or None.

    `going_on`: results of loops that start from what was added up before, in place of zero.
    """
    behind = closure(sums, axes.summed)
    loop = _common_loop(behind)
    counted = axes.state.structure.loop_of(loop) if loop is not None else None
    if loop is None or counted is None or counted.step is None:
        return None
    later = ops_behind(loop)[:-1]
    tail = [op for op in later if not behind.isdisjoint(op.results)]
    taken = [pair for op in tail for pair in zip(op.operands, axes.at(op), strict=True)]
    made: set[Value] = {result for op in later for result in op.results}
    constants = closure(
        [v for v, c in taken if not is_sum(c)],
        lambda value: mlir.made_of(value) if value in made else [],
    )
    held = [op for op in later if not constants.isdisjoint(op.results)]
    added = _added(loop, behind, going_on)
    # A sum that neither is added up nor made of such sums is of the whole batch, and one that is
    # taken as a constant as well would be known to no step.
    known = {*loop.results, *(result for op in tail for result in op.results)}
    flat = not any(op.name in mlir.CONTROL_FLOW for op in (*held, *tail))
    if added is None or not flat or not behind <= known or not added.keys().isdisjoint(constants):
        return None
    if not all(isinstance(c, Shared) or is_sum(c) for _, c in taken):
        return None
    handed_on = {values[0] for result, values in added.items() if _hands_on(loop, result)}
    constant = [v for v in loop.results if v in constants]
    return LoopSums(loop, counted.step, counted.trips, added, handed_on, tail, constant, held)


def reached_values(axes: Axes, outputs: Values) -> set[Value]:
    """All sums over the examples that the outputs rest on, through loops and branches."""

    def behind(value: Value) -> Values:
        return axes.summed(value) or list(filter(axes.sums, ties(value)))

    return closure(filter(axes.sums, outputs), behind)


def _common_loop(sums: set[Value]) -> Operation | None:
    """The one loop of which all these sums result that a loop or branch makes."""
    ops = [op for v in sums if (op := mlir.made_by(v, *mlir.CONTROL_FLOW))]
    one = bool(ops) and ops.count(ops[0]) == len(ops)
    return ops[0] if one and ops[0].name == "stablehlo.while" else None


def _added(loop: Operation, sums: set[Value], going_on: set[Value]) -> dict[Value, Values] | None:
    """What is added in a step to these results of the loop, if all of them are sums from zero."""
    added: dict[Value, Values] = {}
    for number, result in enumerate(loop.results):
        if result not in sums:
            continue
        returned = mlir.returned(mlir.blocks(loop)[1])[number]
        values = [returned] if _hands_on(loop, result) else added_values(loop, number)
        if values is None or not (is_splat(loop.operands[number], 0) or result in going_on):
            return None
        added[result] = values
    return added


def _hands_on(loop: Operation, result: Value) -> bool:
    """Whether a loop in the body goes on from this carry, and the body returns what that results
    in, and nothing else takes it.
    """
    number, body = mlir.results(loop).index(result), mlir.blocks(loop)[1]
    returned = mlir.returned(body)[number]
    within = mlir.made_by(returned, "stablehlo.while")
    if within is None or within.block != body:
        return False
    start = within.operands[mlir.results(within).index(returned)]
    return start == body.arguments[number] and len(list(returned.uses)) == 1


def ops_behind(loop: Operation) -> Operations:
    """The ops behind a loop in its block."""
    ops = mlir.operations(cast(Any, loop.block))
    return ops[ops.index(loop) + 1 :]


def added_values(loop: Operation, number: int) -> Values | None:
    """The values that a step adds to a carry; None where the carry is used in another way."""
    condition, body = mlir.blocks(loop)
    carry, added = body.arguments[number], list[Value]()
    if len(list(carry.uses)) != 1 or list(condition.arguments[number].uses):
        return None
    pending = [mlir.returned(body)[number]]
    carried = 0
    while pending:
        value = pending.pop()
        op = mlir.made_by(value, "stablehlo.add")
        if value == carry:
            carried += 1
        elif op is not None and op.block == body and len(list(value.uses)) == 1:
            pending += op.operands
        else:
            added.append(value)
    return added if carried == 1 else None


@dataclass(frozen=True)
class Order:
    """Which place in a stack a step takes: `index` in the loop's body, and all its `places`, which
    tell orders apart.
    """

    index: Value = field(compare=False)
    places: tuple[int, ...]


def order_along(axes: Axes, loop: Operation, op: Operation) -> tuple[int, Order] | None:
    """Of an op that slices or updates at numbers: the dimension along which it is at one place in
    each step of a loop, and in all steps at each once; with their order.
    """
    link, counted = axes.state.link(op), axes.state.structure.loop_of(loop)
    if link is None or counted is None:
        return None
    whole = mlir.shape(op.operands[0])
    orders = {digit: order for order, digit in counted.digits.items()}
    found = {dim: orders[digit] for dim, digit in link.steps.items() if digit in orders}
    # What has one place is at no digit of its own.
    found = found or {d: (0,) for d, size in enumerate(whole) if size == counted.trips == 1}
    starts = op.operands[len(op.operands) - len(whole) :]
    return next(((dim, Order(starts[dim], places)) for dim, places in found.items()), None)


@dataclass(frozen=True)
class Scan:
    """`loop` stacks updates as its result `number`, slices along `dim`; `write` is the
    dynamic_update_slice that does, in this `order`. `behind`: what moves and scales elements behind
    the loop.
    """

    loop: Operation
    number: int
    write: Operation
    dim: int
    order: Order
    behind: Sequence[Reading] = ()


def scanned_gradient(axes: Axes, gradient: Value) -> Scan | None:
    """The loop that stacks this gradient, if only moves and scales lie behind it; else None."""
    stack, readings = epilogue(axes, gradient)
    scan = scanned_carry(axes, stack)
    return scan and replace(scan, behind=readings)


def scanned_carry(axes: Axes, stack: Value) -> Scan | None:
    """The scan that stacks a loop's result; None if that is not its own steps' gradients."""
    loop = mlir.made_by(stack, "stablehlo.while")
    if loop is None or not axes.sums(stack):
        return None
    number = mlir.results(loop).index(stack)
    write = _stacking_write(loop, number)
    along = write and order_along(axes, loop, write)
    if write is None or along is None or not _is_own(axes, loop, write.operands[1]):
        return None
    whole, part = mlir.shape(write.result), mlir.shape(write.operands[1])
    slices = part == (*whole[: along[0]], 1, *whole[along[0] + 1 :])
    return Scan(loop, number, write, *along) if slices else None


def _stacking_write(loop: Operation, number: int) -> Operation | None:
    """The write of a slice an iteration to a carry with no other use."""
    condition, body = mlir.blocks(loop)
    write = mlir.made_by(mlir.returned(body)[number], "stablehlo.dynamic_update_slice")
    carry = body.arguments[number]
    if write is None or write.block != body:
        return None
    uses = [len(list(v.uses)) for v in (carry, write.result, condition.arguments[number])]
    alone = write.operands[0] == carry and uses == [1, 1, 0]
    return write if alone else None


def _is_own(axes: Axes, loop: Operation, update: Value) -> bool:
    """Whether the update sums nothing that other iterations, or ops outside, have summed."""
    carries = set(mlir.blocks(loop)[1].arguments)
    inside = set(mlir.values_within(loop)) - carries
    return axes.sums(update) and reached_values(axes, [update]) <= inside


def replace_update(write: Operation, value: Value) -> None:
    """Write this value instead, which is made later in the block."""
    write.operands[1] = value
    write.move_before(mlir.return_operation(cast(Any, write.block)))


def carried(
    axes: Axes,
    nest: Operations,
    start: Callable[[], Arrays],
    go_on: Replacement,
    taken: Values,
    scope: Scope,
    reached: Sequence[set[Value]] = (),
) -> tuple[Operation, list[Value]]:
    """The outermost of these loops, rebuilt, and what it results in further. A step of the
    innermost goes on from the state that is carried to that of all steps, with values that it has
    `taken`. What is known of the loops' results, and the sets that they are in, are renewed.
    """
    states = [splice([], start, nest[0], scope=scope)]
    for loop in nest:
        states.append(add_carries(loop, states[-1]))
    end = mlir.return_operation(mlir.blocks(nest[-1])[1])
    values, renewed = splice([*states[-1], *taken], go_on, end, scope=scope), nest[0]
    for loop, initial in zip(reversed(nest), reversed(states[:-1]), strict=True):
        extend_return(mlir.return_operation(mlir.blocks(loop)[1]), values)
        known = [*axes.by_value, *reached]
        renewed = extend_results(loop, initial, known)
        values = mlir.results(renewed)[len(renewed.results) - len(initial) :]
    return renewed, values


@dataclass(frozen=True)
class Part:
    """A step's value, stacked in an `order`: along a dimension of its own, of size 1, or else along
    a new first one.
    """

    value: Value
    order: Order
    dim: int | None = None

    def empty(self) -> Array:
        """The stack before any step."""
        shape, d = mlir.shape(self.value), self.dim
        own = (1, *shape) if d is None else shape
        steps = len(self.order.places)
        return jnp.zeros((*own[: d or 0], steps, *own[(d or 0) + 1 :]), dtype_of(self.value))

    def put(self, stack: Array, value: Array, index: Array) -> Array:
        """The stack with a step's value."""
        part = value[None] if self.dim is None else value
        return jax.lax.dynamic_update_slice_in_dim(
            stack, part, index, self.dim or 0, allow_negative_indices=False
        )


def stacked(
    axes: Axes,
    loop: Operation,
    parts: Sequence[Part],
    reached: Sequence[set[Value]] = (),
) -> tuple[Operation, list[Value]]:
    """The loop rebuilt so that it stacks these, and the stacks."""

    def start() -> Arrays:
        return [part.empty() for part in parts]

    def go_on(*operands: Array) -> Arrays:
        each = (operands[k :: len(parts)] for k in range(len(parts)))
        return [part.put(*state) for part, state in zip(parts, each, strict=True)]

    taken = [*(part.value for part in parts), *(part.order.index for part in parts)]
    return carried(axes, [loop], start, go_on, taken, STACK, reached)
