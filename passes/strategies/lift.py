"""Lift: the gradients of all examples at once, [B, *parameter], by `vmap` of the slice function.

%g = dot_general %h[b, d], %l[b, f] over b  =>  %G[b, d, f]
                                                statistic = mean of phi(%G) over b
                                                %g = mean of %G
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from hlo_surgery.passes.costs.gradient_costs import (
    Counts,
    Predicted,
    patches,
    plain_seconds,
    seconds_alone,
)
from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.joint_sums import summed_together
from hlo_surgery.passes.measures.measures import (
    Defined,
    Gram,
    MeanOf,
    Measure,
    Norms,
    summed_rows,
)
from hlo_surgery.passes.measures.taking import Taking
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Computed,
    Measured,
    Strategy,
    in_own_dtype,
    one_by_one,
)
from hlo_surgery.passes.strategies.taken import taken, taking_seconds
from hlo_surgery.passes.strategies.task import Known, Schedule, Task
from hlo_surgery.passes.terms.slice_functions import SliceFunction, over_examples


def lifted_gradients(
    function: SliceFunction, known: Mapping[Value, jax.Array], size: int
) -> jax.Array:
    """[B, *parameter]: every example's gradient."""
    return over_examples(function, known, size, function.of_one)


def _applies(task: Task, measure: Measure) -> bool:
    """Whether the examples' gradients define it, and `vmap` has a rule for each op."""
    return task.function.liftable and isinstance(measure, Defined)


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """All gradients written and read, unless XLA fuses that; instead of the plain gradient.

    Norms read a gradient more than once, for its largest element before its squares, and XLA fuses
    a contraction into one use alone, which is no contraction itself.
    """
    counts, device = task.counts, task.device
    made = seconds_alone(counts, device, counts.size)
    one = len(counts.sites) == 1 and not counts.row_sites
    read = any(isinstance(m, Norms | Gram) for m in measures) or taken(task, measures) != Taking()
    alone = one and not read
    fused = alone and counts.sites[0].contracts and _is_fused(counts, device)
    moved = device.lifting_seconds(counts.gradient, counts.size, fused)
    held = patches(counts, device) + (0 if fused else counts.size * counts.held)
    held += counts.size * taken(task, measures).held
    seconds = made + moved + taking_seconds(task, measures, times=1)
    return Predicted(seconds - plain_seconds(counts, device), held)


def _is_fused(counts: Counts, device: Roofline) -> bool:
    """On GPU what contracts nothing, as of dense layers' single rows, is left to CUDA cores, which
    multiply within the sum over examples; tensor cores write what they contract.
    """
    return device.fuses_lifted or (
        device.vector_flops < math.inf and counts.sites[0].depth <= counts.size
    )


def _emit(asked: Asked, known: Known) -> Computed:
    """Every measure by its definition."""
    task = asked.task
    gradients = lifted_gradients(task.function, known, task.examples.size)
    padding = task.examples.padding(known)
    means = [m for m in asked.measures if isinstance(m, MeanOf)]
    # Divided before they are summed, since the sum of B gradients may overflow where their mean
    # does not.
    shares = gradients / task.examples.size if asked.chosen.reuse else None
    together = [m.rows(gradients, padding) for m in means]
    sums, mean = _summed(asked, (together, shares))
    count = task.examples.count(known)
    measured: Measured = {m: m.whole(total, count) for m, total in zip(means, sums, strict=True)}
    measured |= {
        measure: measure.of(gradients, padding)
        for measure in asked.measures
        if isinstance(measure, Defined) and measure not in measured
    }
    total = None if mean is None else task.total(mean)
    return Computed(in_own_dtype(task, measured), total)


def _summed(asked: Asked, rows: Any) -> Any:
    """Arrays summed over the examples: where jointly, over each device's own first, as XLA gathers
    what it cannot reduce over devices one by one.
    """
    size, schedule = asked.task.examples.size, asked.chosen.schedule
    if not schedule.joint_sums:
        return jax.tree.map(summed_rows, rows)
    shards = math.gcd(size, schedule.shards)
    parted = jax.tree.map(lambda x: x.reshape(shards, size // shards, *x.shape[1:]), rows)
    return jax.tree.map(summed_rows, summed_together(parted, 1))


LIFT = Strategy(
    "lift", _applies, _predict, one_by_one(_emit), words="each example's own gradient, all at once"
)
