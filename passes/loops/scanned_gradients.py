"""Scanned gradients: given a gradient that a loop stacks by slices, the update in its body instead.

    %r = while (%c) { %u = transpose %site ; %n = dynamic_update_slice %c, %u, %i ; return %n }
        =>  %u

A scan over layers stacks the gradients of the layers so. If each slice is written once, an
elementwise statistic of the stack is the stack of the statistics, which the same loop can write:
nothing of the size of B stacks is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.dataflow.numbers import is_permutation, values_over
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.loop_sums import reached_values
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.epilogue import Link, epilogue


@dataclass(frozen=True)
class Scan:
    """`loop` stacks updates as its result `number`; `write` is the dynamic_update_slice that does.

    `behind`: what moves and scales elements behind the loop.
    """

    loop: Operation
    number: int
    write: Operation
    behind: Sequence[Link] = ()

    @property
    def dim(self) -> int:
        """The dimension along which slices are stacked."""
        whole, part = mlir.shape(self.write.results[0]), mlir.shape(self.write.operands[1])
        return next(
            (d for d in range(len(whole)) if whole[d] != part[d]),
            whole.index(1) if 1 in whole else 0,
        )

    @property
    def index(self) -> Value:
        """The number of the slice that is written."""
        return self.write.operands[2 + self.dim]

    @property
    def steps(self) -> int:
        """How many slices are written."""
        return mlir.shape(self.write.results[0])[self.dim]


def scanned_gradient(axes: Axes, gradient: Value) -> Scan | None:
    """The loop that stacks this gradient, if only moves and scales lie behind it; else None."""
    stack, links = epilogue(axes, gradient)
    scan = scanned_carry(axes, stack)
    return scan and replace(scan, behind=links)


def scanned_carry(axes: Axes, stack: Value) -> Scan | None:
    """The scan that stacks a loop's result; None if that is not its own steps' gradients."""
    loop = mlir.defining_operation(stack)
    if loop is None or loop.name != "stablehlo.while" or not axes.is_sum(axes.of(stack)):
        return None
    number = mlir.results(loop).index(stack)
    write = _stacking_write(loop, number)
    if write is None or not _is_own(axes, loop, write.operands[1]):
        return None
    return Scan(loop, number, write)


def _stacking_write(loop: Operation, number: int) -> Operation | None:
    """The write of a slice an iteration, each once, to a carry with no other use."""
    condition, body = (region.blocks[0] for region in loop.regions)
    write = mlir.defining_operation(mlir.operands(mlir.return_operation(body))[number])
    carry = body.arguments[number]
    if write is None or write.name != "stablehlo.dynamic_update_slice" or write.block != body:
        return None
    uses = [len(list(v.uses)) for v in (carry, write.results[0], condition.arguments[number])]
    alone = write.operands[0] == carry and uses == [1, 1, 0]
    return write if alone and _covers(loop, write) else None


def _covers(loop: Operation, write: Operation) -> bool:
    counters = counter_values(loop)
    if counters is None:
        return False
    whole, part = mlir.shape(write.results[0]), mlir.shape(write.operands[1])
    stacked = [d for d in range(len(whole)) if whole[d] != part[d]]
    if not stacked:
        return 1 in whole and len(next(iter(counters.values()))) == 1
    along = stacked[0]
    numbers = values_over(write.operands[2 + along], counters)
    return len(stacked) == part[along] == 1 and is_permutation(numbers, whole[along])


def _is_own(axes: Axes, loop: Operation, update: Value) -> bool:
    """Whether the update sums nothing that other iterations, or ops outside, have summed."""
    carries = set(loop.regions[1].blocks[0].arguments)
    inside = set(mlir.values_within(loop)) - carries
    return axes.is_sum(axes.of(update)) and reached_values(axes, [update]) <= inside


def replace_update(write: Operation, value: Value) -> None:
    """Write this value instead, which is made later in the block."""
    write.operands[1] = value
    write.move_before(mlir.return_operation(cast(Any, write.block)))
