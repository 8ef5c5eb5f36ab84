"""Scaled stacks: a gradient that a loop stacks and one number scales behind it, scaled in the loop.

    %r = while { dynamic_update_slice %c, %u, %i } ; %g = multiply %r, %n
        =>  %s = while { .. ; dynamic_update_slice %d, (multiply %u, %n), %i } ; %s for %g

What is asked of a stack's slices is then asked of what they are in the gradient: its norms, and
functions that do not factor. The stack is there to be looked at, and XLA drops it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import add_carries, copy_before, extend_results, extend_return
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import COPIES
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.loops.scanned_gradients import Scan, scanned_carry
from hlo_surgery.passes.terms.axes import Axes, Summed
from hlo_surgery.passes.terms.gradient_slices import behind_barriers
from hlo_surgery.passes.terms.tails import SCALES, is_monomial


@dataclass(frozen=True)
class ScaledStack:
    """`ops` lead from what `scan` stacks to a gradient; `numbers`: what those that scale do so by,
    by their results, None where they negate.
    """

    scan: Scan
    ops: list[Operation]
    numbers: dict[Value, Value | None]


def scale_in_loops(axes: Axes, holder: Operation) -> None:
    """In the place of an op's operands that are scaled stacks put gradients that loops scale."""
    for i in range(len(holder.operands)):
        found = _scaled_stack(axes, holder.operands[i])
        if found is not None:
            stack = _scaled_in_loop(axes, found)
            holder.operands[i] = _moved(axes, found, stack, holder)


def _scaled_stack(axes: Axes, gradient: Value) -> ScaledStack | None:
    """The loop that stacks a gradient, if moves and numbers that scale it lie behind it."""
    ops, numbers = list[Operation](), dict[Value, Value | None]()
    value = behind_barriers(gradient)
    op = mlir.defining_operation(value)
    while op is not None and op.name != "stablehlo.while":
        summed = axes.summed(op)
        if not isinstance(axes.of(value), Summed) or not is_monomial(op) or len(summed) != 1:
            return None
        if op.name in SCALES:
            numbers[op.results[0]] = _number(op, summed[0])
        ops.insert(0, op)
        value = behind_barriers(summed[0])
        op = mlir.defining_operation(value)
    alike = all(dtype_of(v) == dtype_of(value) for made in ops for v in made.results)
    if op is None or not alike or not all(_is_known(made, n, op) for made, n in numbers.items()):
        return None
    scan = scanned_carry(axes, op, mlir.results(op).index(value)) if numbers else None
    return None if scan is None else ScaledStack(scan, ops, numbers)


def _number(op: Operation, scaled: Value) -> Value | None:
    """The scalar by which an op multiplies or divides all elements, as far as copies show."""
    others = [v for v in op.operands if v != scaled]
    if len(others) != 1:
        return None
    number = others[0]
    while (copied := _copied_alike(number)) is not None:
        number = copied
    return number


def _copied_alike(value: Value) -> Value | None:
    """What a value copies in its own element type."""
    op = mlir.defining_operation(value)
    alike = op is not None and op.name in COPIES and dtype_of(op.operands[0]) == dtype_of(value)
    return op.operands[0] if op is not None and alike else None


def _is_known(made: Value, number: Value | None, loop: Operation) -> bool:
    """Whether a scale is one number that is there before the loop, or a constant."""
    if number is None:
        op = mlir.defining_operation(made)
        return op is not None and op.name == "stablehlo.negate"
    op = mlir.defining_operation(number)
    if mlir.shape(number) or op is None or op.block != loop.block:
        return not mlir.shape(number)
    return op.name == "stablehlo.constant" or cast(Any, op).is_before_in_block(loop)


def _scaled_in_loop(axes: Axes, found: ScaledStack) -> Value:
    """The loop's further result, to which each step writes what it stacks, scaled."""
    loop, write = found.scan.loop, found.scan.write
    numbers = {v: _before(n, loop) if n is not None else None for v, n in found.numbers.items()}
    known = axes.of(write.operands[1])
    kind, dtype = mlir.shape(write.results[0]), dtype_of(write.results[0])
    zeros = splice([], lambda: [jnp.zeros(kind, dtype)], loop)
    argument = add_carries(loop, zeros)[0]
    end = mlir.return_operation(loop.regions[1].blocks[0])
    share = write.operands[1]
    for made, number in reversed(numbers.items()):
        share = _scaled(made, share, number, end)
        axes.classes[share] = known
    stacked = _written(write, argument, share, end)
    axes.classes |= dict.fromkeys([argument, stacked], known)
    extend_return(end, [stacked])
    renewed = extend_results(loop, zeros, 1, [axes.classes], [axes.trained])
    made = mlir.results(renewed)[-1]
    axes.classes[made] = known
    return made


def _before(number: Value, loop: Operation) -> Value:
    """A number in front of the loop, where it is a constant that comes later."""
    op = mlir.defining_operation(number)
    if op is None or op.name != "stablehlo.constant":
        return number
    return copy_before(op, [], loop).results[0]


def _scaled(made: Value, share: Value, number: Value | None, end: Operation) -> Value:
    op = mlir.defining_operation(made)
    assert op is not None
    divides = op.name == "stablehlo.divide"

    def scaled(x: jax.Array, *by: jax.Array) -> list[jax.Array]:
        return [-x if not by else x / by[0] if divides else x * by[0]]

    return splice([share, *([] if number is None else [number])], scaled, end)[0]


def _written(write: Operation, argument: Value, share: Value, end: Operation) -> Value:
    operands = [argument, share, *mlir.operands(write)[2:]]
    with mlir.context(), end.location, ir.InsertionPoint(end):
        made = ir.Operation.create(write.name, results=[argument.type], operands=operands)
    return made.results[0]


def _moved(axes: Axes, found: ScaledStack, stack: Value, before: Operation) -> Value:
    """The stack behind the ops that do not scale."""
    value, known = stack, axes.of(stack)
    for op in (op for op in found.ops if op.results[0] not in found.numbers):
        summed: Sequence[Value] = axes.summed(op)
        operands = [value if v in summed else v for v in op.operands]
        value = copy_before(op, operands, before).results[0]
        axes.classes[value] = known
    return value
