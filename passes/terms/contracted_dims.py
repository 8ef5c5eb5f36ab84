"""Contracted dims: the dimensions along which an op sums an operand, and those that stay.

dot_general %h[g, t, d], %l[g, t, f]    =>    of both: g shared, t summed, d and f stay
reduce %l[t, f]                         =>    of operand 0: t summed; its other factor is ones
scatter %u[t, d] at %i[t]               =>    of operand 2: t summed; indices pick rows for it
convolution %x, %l[t, f]                =>    of operand 1: t summed; beside it patches of %x
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import (
    convolution_numbers,
    dot_numbers,
    integers,
    scatter_numbers,
)
from hlo_surgery.passes.ir.mlir import Operation

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Contracted:
    """An operand of an op that sums products: its dimensions of this `shape`, by what they do.

    `batch`: the result has them once for both operands; `summed`: in the order of the op; `free`:
    the result has them for this operand.
    """

    shape: Dims
    batch: Dims
    summed: Dims
    free: Dims

    @property
    def positions(self) -> int:
        """How many terms are summed."""
        return math.prod(self.shape[d] for d in self.summed)

    @property
    def elements(self) -> int:
        """How many elements each term has."""
        return math.prod(self.shape[d] for d in (*self.batch, *self.free))


def contracted(op: Operation) -> dict[int, Contracted]:
    """What an op sums, by operand number; no operand of an op that is none of the above."""
    match op.name:
        case "stablehlo.dot_general":
            numbers = dot_numbers(op)
            left = numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions
            right = numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions
            return {0: _operand(op, 0, *left), 1: _operand(op, 1, *right)}
        case "stablehlo.reduce":
            return {0: _operand(op, 0, (), integers(op, "dimensions"))}
        case "stablehlo.scatter":
            window = list(scatter_numbers(op).update_window_dims)
            rank = len(mlir.shape(op.operands[2]))
            return {2: _operand(op, 2, (), [d for d in range(rank) if d not in window])}
        case "stablehlo.convolution":
            kernel = convolution_numbers(op)
            positions = kernel.kernel_input_feature_dimension, *kernel.kernel_spatial_dimensions
            return {1: _operand(op, 1, (), positions)}
        case _:
            return {}


def _operand(op: Operation, number: int, batch: Sequence[int], summed: Sequence[int]) -> Contracted:
    shape = mlir.shape(op.operands[number])
    taken = {*batch, *summed}
    free = tuple(d for d in range(len(shape)) if d not in taken)
    return Contracted(shape, tuple(batch), tuple(summed), free)
