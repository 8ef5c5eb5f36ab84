"""Taken: what it costs to take measures of all examples' gradients, beside making these."""

from collections.abc import Sequence

import jax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.measures.measure import Defined, Measure
from hlo_surgery.passes.measures.taking import Taking
from hlo_surgery.passes.strategies.task import Task


def taken(task: Task, measures: Sequence[Measure]) -> Taking:
    """Of one example's gradient, all measures together."""
    value = task.sliced.value
    kind = jax.ShapeDtypeStruct(mlir.shape(value), dtype_of(value))
    return sum((m.taking(kind) for m in measures if isinstance(m, Defined)), Taking())


def taking_seconds(task: Task, measures: Sequence[Measure], times: int) -> float:
    """Of all examples, so many `times` a few at once; what is drawn is written and read."""
    each, device = taken(task, measures), task.device
    contracted = task.counts.size * each.flops / device.contraction_rate(device.depth, True)
    return contracted + times * 2 * each.drawn / device.bandwidth
