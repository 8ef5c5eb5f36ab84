"""Tasks: one gradient of a batch of examples, and all that computing its measures rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import Counts, counts_of
from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.real_examples import Padding
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.terms.slice_functions import SliceFunction
from hlo_surgery.passes.terms.steps import GradientSlice
from hlo_surgery.passes.terms.wide_slices import narrowest

Known = Mapping[Value, jax.Array]


@dataclass(frozen=True)
class Examples:
    """A batch of `size` examples. `is_mean`: whether the loss is their mean, and not their sum.

    `real`: the module's values that say which are no padding, [B], and how many; None if all are.
    """

    size: int
    is_mean: bool
    real: tuple[Value, Value] | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """The module's values that say something of them."""
        return self.real or ()

    def flags(self, known: Known) -> jax.Array | None:
        """Which are real, [B], or None where all are."""
        return None if self.real is None else known[self.real[0]]

    def padding(self, known: Known) -> Padding | None:
        """Which are real, and how many, or None where all are."""
        return None if self.real is None else Padding(*(known[value] for value in self.real))

    def count(self, known: Known) -> Any:
        """How many a mean is over: B, or a traced number that is 1 at least."""
        return self.size if self.real is None else known[self.real[1]]

    def factor(self, known: Known) -> Any:
        """An example's gradient over its contribution to the batch's."""
        return self.count(known) if self.is_mean else 1

    def mean_gradient(self, gradient: Value, known: Known) -> jax.Array:
        """The mean of the examples' gradients, from the module's own."""
        mean = widened(known[gradient])
        return mean if self.is_mean else mean / self.count(known)


@dataclass(frozen=True)
class Schedule:
    """How a loop goes over the examples: `chunk` at a time, over so many devices each its own.

    `written_out`: step after step, without a loop; `parts`: on how many devices the parts of one
    example's gradient lie, as the layers of a model that is split over them.
    """

    chunk: int
    shards: int
    written_out: bool
    parts: int = 1


@dataclass(frozen=True)
class Task:
    """One gradient of the module, by its name.

    `precise`: nothing on the way to it is rounded below float32. `made_before`: what makes each
    example's own gradient, where the program does so itself, and its site only adds them up.
    `devices`: on how many the module may run.
    """

    name: str
    gradient: Value
    sliced: GradientSlice
    function: SliceFunction
    einsums: Sequence[Einsum]
    examples: Examples
    device: Roofline
    precise: bool
    made_before: Operation | None = None
    devices: int = 1

    @cached_property
    def counts(self) -> Counts:
        """What its sites compute and move."""
        return counts_of(self.sliced, self.examples.size)

    @property
    def dtype(self) -> jnp.dtype:
        """What squares and sums of its elements are accumulated in: float32 for narrower ones."""
        return wide_dtype(dtype_of(self.sliced.value))

    def total(self, mean: jax.Array) -> jax.Array:
        """The minibatch gradient from the mean of the examples', rounded as the module does."""
        return self.rounded(mean if self.examples.is_mean else mean * self.examples.size)

    def rounded(self, total: jax.Array) -> jax.Array:
        """The minibatch gradient, rounded as the module does."""
        if self.function.wide:
            total = total.astype(narrowest(self.sliced))
        return total.astype(dtype_of(self.sliced.value))


def is_precise(sliced: GradientSlice) -> bool:
    """Whether nothing between the examples and the gradient is rounded to less than float32."""
    taken = [value for value, _ in sliced.inputs if mlir.is_inexact(value)]
    return makes_float32(sliced) and all(map(mlir.is_at_least_float32, [sliced.value, *taken]))


def makes_float32(sliced: GradientSlice) -> bool:
    """Whether no op on the way to the gradient rounds to less than float32."""
    return all(
        mlir.is_at_least_float32(result) for step in sliced.steps for result in step.op.results
    )
