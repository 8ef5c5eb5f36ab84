"""Lift: the gradients of all examples at once, [B, *parameter], by `vmap` of the slice function.

%g = dot_general %h[b, d], %l[b, f] over b  =>  %G[b, d, f]
                                                statistic = mean of phi(%G) over b
                                                %g = mean of %G
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import jax
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import (
    Counts,
    Predicted,
    patches,
    plain_seconds,
    seconds_alone,
)
from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.measure import Defined, Measure, summed_rows
from hlo_surgery.passes.measures.measures import Gram, Norms
from hlo_surgery.passes.measures.taking import Taking
from hlo_surgery.passes.strategies.by_gradient.loop_examples import looped_gradients
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
    """All gradients written and read, unless XLA fuses that; instead of the plain gradient."""
    counts, device = task.counts, task.device
    made = seconds_alone(counts, device, counts.size)
    fused = _reads_once(task, measures) and _is_fused(counts, device)
    if fused and all(isinstance(m, Norms) for m in measures):
        # Summed while the next ones are contracted.
        made, moved = max(made, counts.size * counts.elements * device.read_element), 0
    else:
        moved = device.lifting_seconds(counts.held, counts.size, fused)
    held = patches(counts, device) + (0 if fused else counts.size * counts.held)
    held += counts.size * taken(task, measures).held
    seconds = made + moved + taking_seconds(task, measures, times=1)
    return Predicted(seconds - plain_seconds(counts, device), held)


def _reads_once(task: Task, measures: Sequence[Measure]) -> bool:
    """Whether gradients are used where they are made: XLA fuses a contraction into one use alone,
    which is no contraction itself.

    Norms are of other sums than those over the examples, and take the squares alone only where they
    need not be held for a second reading, for their largest elements.
    """
    counts, device = task.counts, task.device
    if any(isinstance(m, Norms) for m in measures) and not (
        device.fuses_lifted and counts.held <= device.fused_sum
    ):
        return False
    again = any(isinstance(m, Gram) for m in measures) or taken(task, measures) != Taking()
    one = len(counts.sites) == 1
    return one and not again and counts.sites[0].contracts


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
    again = partial(_norms_again, asked, known) if task.device.fuses_lifted else None
    measured: Measured = {
        measure: measure.of(gradients, padding, again)
        if isinstance(measure, Norms)
        else measure.of(gradients, padding)
        for measure in asked.measures
        if isinstance(measure, Defined)
    }
    # Divided before they are summed, since the sum of B gradients may overflow where their mean
    # does not.
    reuse, size = asked.chosen.reuse, task.examples.size
    total = task.total(summed_rows(gradients / size)) if reuse else None
    return Computed(in_own_dtype(task, measured), total)


def _norms_again(asked: Asked, known: Known, measure: Norms) -> jax.Array:
    """Norms of gradients that are made once more, at once if they fit into the chip's own memory.

    Behind a barrier, as they would be the same ones, and held, otherwise.
    """
    task = asked.task
    function, size, schedule = task.function, task.examples.size, asked.chosen.schedule
    values = [value for value, _ in function.inputs]
    given = lax.optimization_barrier([known[value] for value in values])
    apart = {**known, **dict(zip(values, given, strict=True))}
    of_one = partial(measure.each, mean=None)
    if size * task.counts.held <= task.device.cache:
        return jax.vmap(of_one)(lifted_gradients(function, apart, size))
    return looped_gradients(function, apart, size, schedule, _nothing, of_one)[1]


def _nothing(gradient: jax.Array) -> tuple[()]:
    return ()


LIFT = Strategy(
    "lift", _applies, _predict, one_by_one(_emit), words="each example's own gradient, all at once"
)
