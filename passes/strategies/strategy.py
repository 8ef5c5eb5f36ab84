"""Strategy: one exact way to measures of a gradient, as a value; what was chosen for a gradient.

Tasks: one gradient of a batch of examples, and all that computing its measures rests on.

Taken: what it costs to take measures of all examples' gradients, beside making these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.measures import (
    Defined,
    Measure,
    PerExampleGradients,
    Phi,
    TakingCost,
)
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.strategies.gradient_costs import (
    Counts,
    Predicted,
    Roofline,
    Schedule,
    counts_of,
)
from hlo_surgery.passes.terms.site_functions import in_order
from hlo_surgery.passes.terms.slice_functions import (
    Contracting,
    SliceFunction,
    narrowest,
    slice_function,
)
from hlo_surgery.passes.terms.steps import GradientSlice, Known


@dataclass(frozen=True)
class Examples:
    """A batch of `size` examples. `is_mean`: whether the loss is their mean, and not their sum.

    `real`: the module's values that say which are no padding, [B], and how many; None if all are.
    `crossed`: that which says which meet others, [B]; None where none can.
    """

    size: int
    is_mean: bool
    real: tuple[Value, Value] | None = None
    crossed: Value | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """The module's values that say something of them."""
        return (*(self.real or ()), *([] if self.crossed is None else [self.crossed]))

    def flags(self, known: Known) -> Array | None:
        """Which are real, [B], or None where all are."""
        return None if self.real is None else known[self.real[0]]

    def count(self, known: Known) -> Any:
        """How many a mean is over: B, or a traced number that is 1 at least."""
        return self.size if self.real is None else known[self.real[1]]

    def factor(self, known: Known) -> Any:
        """An example's gradient over its contribution to the batch's."""
        return self.count(known) if self.is_mean else 1

    def mean_gradient(self, gradient: Value, known: Known) -> Array:
        """The mean of the examples' gradients, from the module's own."""
        mean = widened(known[gradient])
        return mean if self.is_mean else mean / self.count(known)


@dataclass(frozen=True)
class Task:
    """One gradient of the module, by its name.

    `how`: its sites contract; `counted`: how many examples are real, where some are padding.

    `precise`: nothing on the way to it is rounded below float32. `made_before`: what makes each
    example's own gradient, where the program does so itself, and its site only adds them up.
    `devices`: on how many the module may run.
    """

    name: str
    gradient: Value
    sliced: GradientSlice
    how: Contracting
    counted: Value | None
    einsums: Sequence[Einsum]
    examples: Examples
    device: Roofline
    precise: bool
    made_before: Operation | None = None
    devices: int = 1

    @cached_property
    def function(self) -> SliceFunction:
        """From one example's operands to its gradient."""
        examples = self.examples
        return slice_function(self.sliced, examples.size, examples.is_mean, self.how, self.counted)

    @cached_property
    def looped(self) -> SliceFunction:
        """The same for one example after another, which reads its own rows of ragged axes alone."""
        own = in_order(self.sliced)
        return self.function if own == self.sliced else replace(self, sliced=own).function

    @cached_property
    def counts(self) -> Counts:
        """What its sites compute and move."""
        return counts_of(self.sliced, self.examples.size)

    @property
    def dtype(self) -> jnp.dtype:
        """What squares and sums of its elements are accumulated in: float32 for narrower ones."""
        return wide_dtype(dtype_of(self.sliced.value))

    def total(self, mean: Array) -> Array:
        """The minibatch gradient from the mean of the examples', rounded as the module does."""
        return self.rounded(mean if self.examples.is_mean else mean * self.examples.size)

    def rounded(self, total: Array) -> Array:
        """The minibatch gradient, rounded as the module does."""
        if self.how.wide:
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


Measures = Sequence[Measure]
Measured = dict[Measure, Array]


@dataclass(frozen=True)
class Computed:
    """Measures of a gradient; the gradient as well, where all examples' own were made anyway."""

    measured: Measured
    gradient: Array | None = None


jax.tree_util.register_pytree_node(
    Computed,
    lambda one: ((one.gradient, *one.measured.values()), tuple(one.measured)),
    lambda measures, made: Computed(dict(zip(measures, made[1:], strict=True)), made[0]),
)


@dataclass(frozen=True)
class Strategy:
    """A way to compute some measures of a gradient.

    `applies`: whether it makes a measure of a gradient exactly; `predict`: what it takes for these
    measures beside the plain gradient; `emit`: JAX code for what is asked of several gradients, a
    result for each; `pays`: whether a measure that it makes is worth it, where nobody forces it,
    given what making each example's own gradient takes; `words`: what it does, in a few words, as
    plans and reports print it; `together`: which gradients it emits as one, by number.
    """

    name: str
    applies: Callable[[Task, Measure], bool]
    predict: Callable[[Task, Measures, Schedule], Predicted]
    emit: Callable[[Sequence["Asked"], Known], list[Computed]]
    pays: Callable[[Task, Measure, Schedule, Predicted], bool] = lambda *_: True
    words: str = ""
    together: "Callable[[Mapping[int, Chosen]], list[list[int]]]" = lambda chosen: [
        [i] for i in chosen
    ]


@dataclass(frozen=True)
class Chosen:
    """A task with a strategy for each measure, and what was predicted of all that apply, by name.

    `instantiating`: how to come by each example's own gradient where that is needed; `reuse`: the
    gradient is taken from there as well; `weighting`: what makes the sum over b of w_b g_b, or of
    phi of it, in at least float32, of the finite alone, where operands cannot take weights.
    """

    task: Task
    strategies: Mapping[Measure, Strategy]
    instantiating: Strategy
    schedule: Schedule
    reuse: bool
    predicted: Mapping[str, Predicted]
    weighting: "Weighting"

    def made_by(self, strategy: Strategy) -> list[Measure]:
        """The measures that a strategy makes."""
        return [measure for measure, taken in self.strategies.items() if taken is strategy]


# Of what was chosen, what is known, the weights [B], which are finite [B], and phi.
Weighting = Callable[[Chosen, Known, Array, Array | None, Phi | None], Array]


@dataclass(frozen=True)
class Asked:
    """Measures that one strategy is to make of one gradient."""

    chosen: Chosen
    measures: Measures

    @property
    def task(self) -> Task:
        """The gradient."""
        return self.chosen.task


def one_by_one(
    emit: Callable[[Asked, Known], Computed],
) -> Callable[[Sequence[Asked], Known], list[Computed]]:
    """What emits several gradients' measures that share nothing, from what emits one's."""
    return lambda asked, known: [emit(one, known) for one in asked]


def each_measure(
    emit: Callable[[Asked, Known, Measure], Array],
) -> Callable[[Sequence[Asked], Known], list[Computed]]:
    """The same, from what emits one measure."""
    return one_by_one(
        lambda asked, known: Computed({m: emit(asked, known, m) for m in asked.measures})
    )


def in_own_dtype(task: Task, measured: Measured) -> Measured:
    """Gradients themselves are returned as the module would."""
    dtype = dtype_of(task.sliced.value)
    return {
        m: x.astype(dtype) if isinstance(m, PerExampleGradients) else x for m, x in measured.items()
    }


def taken(task: Task, measures: Measures) -> TakingCost:
    """Of one example's gradient, all measures together."""
    value = task.sliced.value
    kind = jax.ShapeDtypeStruct(mlir.shape(value), dtype_of(value))
    each = (m.taking(kind) for m in measures if isinstance(m, Defined))
    return TakingCost(*map(sum, zip(TakingCost(), *each, strict=True)))


def taking_seconds(task: Task, measures: Measures, times: int) -> float:
    """Of all examples, so many `times` a few at once; what is drawn is written and read."""
    each, device = taken(task, measures), task.device
    contracted = task.counts.size * each.flops / device.contraction_rate(device.depth, True)
    return contracted + times * 2 * each.drawn / device.bandwidth
