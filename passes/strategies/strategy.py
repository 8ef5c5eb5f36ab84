"""Strategy: one exact way to measures of a gradient, as a value; what was chosen for a gradient."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.emit.scopes import within
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import PerExampleGradients
from hlo_surgery.passes.strategies.task import Known, Schedule, Task

Measured = dict[Measure, jax.Array]


@dataclass(frozen=True)
class Computed:
    """Measures of a gradient; the gradient as well, where all examples' own were made anyway."""

    measured: Measured
    gradient: jax.Array | None = None


def _always(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    return True


@dataclass(frozen=True)
class Strategy:
    """A way to compute some measures of a gradient.

    `applies`: whether it makes a measure of a gradient exactly; `predict`: what it takes for these
    measures beside the plain gradient; `emit`: JAX code for what is asked of several gradients, a
    result for each; `pays`: whether a measure that it makes is worth it, where nobody forces it,
    given what making each example's own gradient takes; `words`: what it does, for those who have
    not read of it.
    """

    name: str
    applies: Callable[[Task, Measure], bool]
    predict: Callable[[Task, Sequence[Measure], Schedule], Predicted]
    emit: Callable[[Sequence["Asked"], Known], list[Computed]]
    pays: Callable[[Task, Measure, Schedule, Predicted], bool] = _always
    words: str = ""


@dataclass(frozen=True)
class Chosen:
    """A task with a strategy for each measure, and what was predicted of all that apply, by name.

    `instantiating`: how to come by each example's own gradient where that is needed; `reuse`: the
    gradient is taken from there as well; `weighting`: what makes sums with weights, where operands
    cannot take these.
    """

    task: Task
    strategies: Mapping[Measure, Strategy]
    instantiating: Strategy
    schedule: Schedule
    reuse: bool
    predicted: Mapping[str, Predicted]
    weighting: Strategy

    def made_by(self, strategy: Strategy) -> list[Measure]:
        """The measures that a strategy makes."""
        return [measure for measure, taken in self.strategies.items() if taken is strategy]


@dataclass(frozen=True)
class Asked:
    """Measures that one strategy is to make of one gradient."""

    chosen: Chosen
    measures: Sequence[Measure]

    @property
    def task(self) -> Task:
        """The gradient."""
        return self.chosen.task


def one_by_one(
    emit: Callable[[Asked, Known], Computed],
) -> Callable[[Sequence[Asked], Known], list[Computed]]:
    """What emits several gradients' measures that share nothing, from what emits one's."""

    def emit_each(asked: Sequence[Asked], known: Known) -> list[Computed]:
        made: list[Computed] = []
        for one in asked:
            with within("output", [one.task.name]):
                made.append(emit(one, known))
        return made

    return emit_each


def each_measure(
    emit: Callable[[Asked, Known, Measure], jax.Array],
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
