"""Scaled stacks: a gradient that a loop stacks and one number scales behind it, scaled in the loop.

    %r = while { dynamic_update_slice %c, %u, %i } ; %g = multiply %r, %n
        =>  %s = while { .. ; dynamic_update_slice %d, (multiply %u, %n), %i } ; %s for %g

What is asked of a stack's slices is then asked of what they are in the gradient: its norms, and
functions that do not factor. The stack is there to be looked at, and XLA drops it.
"""

from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import add_carries, copy_before, extend_results, extend_return
from hlo_surgery.passes.emit.scopes import STACK, set_scope
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import COPIES
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.loops.scanned_gradients import Scan, scanned_gradient
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.epilogue import Link, only_moves


@dataclass(frozen=True)
class ScaledStack:
    """A scan, and what those of the links behind it that scale do so by, None where they negate."""

    scan: Scan
    scales: list[tuple[Link, Value | None]]


def scale_in_loops(axes: Axes, holder: Operation) -> None:
    """In the place of an op's operands that are scaled stacks put gradients that loops scale."""
    for i in range(len(holder.operands)):
        found = _scaled_stack(axes, holder.operands[i])
        if found is not None:
            stack = _scaled_in_loop(axes, found)
            holder.operands[i] = _moved(axes, found, stack, holder)


def _scaled_stack(axes: Axes, gradient: Value) -> ScaledStack | None:
    """The loop that stacks a gradient, if moves and numbers that scale it lie behind it."""
    scan = scanned_gradient(axes, gradient)
    if scan is None or only_moves(scan.behind):
        return None
    made = [gradient, *(link.made for link in scan.behind)]
    alike = all(dtype_of(v) == dtype_of(scan.write.results[0]) for v in made)
    scales = [(link, _number(link)) for link in scan.behind if link.scales]
    known = all(number is None or _is_known(number, scan.loop) for _, number in scales)
    return ScaledStack(scan, scales) if alike and known else None


def _number(link: Link) -> Value | None:
    """What an op multiplies or divides all elements by, as far as copies show."""
    number = next(iter(link.others), None)
    while number is not None and (copied := _copied_alike(number)) is not None:
        number = copied
    return number


def _copied_alike(value: Value) -> Value | None:
    """What a value copies in its own element type."""
    op = mlir.defining_operation(value)
    alike = op is not None and op.name in COPIES and dtype_of(op.operands[0]) == dtype_of(value)
    return op.operands[0] if op is not None and alike else None


def _is_known(number: Value, loop: Operation) -> bool:
    """Whether a scale is one number that is there before the loop, or a constant."""
    op = mlir.defining_operation(number)
    if mlir.shape(number) or op is None or op.block != loop.block:
        return not mlir.shape(number)
    return op.name == "stablehlo.constant" or cast(Any, op).is_before_in_block(loop)


def _scaled_in_loop(axes: Axes, found: ScaledStack) -> Value:
    """The loop's further result, to which each step writes what it stacks, scaled."""
    loop, write = found.scan.loop, found.scan.write
    known = axes.of(write.operands[1])
    kind, dtype = mlir.shape(write.results[0]), dtype_of(write.results[0])
    zeros = splice([], lambda: [jnp.zeros(kind, dtype)], loop, scope=STACK)
    argument = add_carries(loop, zeros)[0]
    end = mlir.return_operation(loop.regions[1].blocks[0])
    share = write.operands[1]
    for link, number in found.scales:
        share = _scaled(link, share, number and _before(number, loop), end)
        axes.assume(share, known)
    stacked = _written(write, argument, share, end)
    axes.assume(argument, known)
    axes.assume(stacked, known)
    extend_return(end, [stacked])
    renewed = extend_results(loop, zeros, 1, axes.by_value, [axes.trained])
    made = mlir.results(renewed)[-1]
    axes.assume(made, known)
    return made


def _before(number: Value, loop: Operation) -> Value:
    """A number in front of the loop, where it is a constant that comes later."""
    op = mlir.defining_operation(number)
    if op is None or op.name != "stablehlo.constant":
        return number
    return copy_before(op, [], loop, STACK).results[0]


def _scaled(link: Link, share: Value, number: Value | None, end: Operation) -> Value:
    def scaled(x: jax.Array, *by: jax.Array) -> list[jax.Array]:
        return [-x if not by else x / by[0] if link.divides else x * by[0]]

    by = [] if number is None else [number]
    return splice([share, *by], scaled, end, scope=STACK)[0]


def _written(write: Operation, argument: Value, share: Value, end: Operation) -> Value:
    operands = [argument, share, *mlir.operands(write)[2:]]
    with mlir.context(), end.location, ir.InsertionPoint(end):
        made = ir.Operation.create(write.name, results=[argument.type], operands=operands)
    set_scope(made, STACK, write)
    return made.results[0]


def _moved(axes: Axes, found: ScaledStack, stack: Value, before: Operation) -> Value:
    """The stack behind the ops that do not scale."""
    value, known = stack, axes.of(stack)
    for link in found.scan.behind:
        if not link.scales:
            operands = [value if i in link.sums else v for i, v in enumerate(link.op.operands)]
            value = copy_before(link.op, operands, before, STACK).results[0]
            axes.assume(value, known)
    return value
