"""Lift: the gradients of all examples at once, [B, *parameter], by `vmap` of the slice function.

%g = dot_general %h[b, d], %l[b, f] over b  =>  %G[b, d, f]
                                                statistic = mean of phi(%G) over b
                                                %g = mean of %G

Loop: measures by a loop over the examples, one for all gradients that have operands in common.

acc = 0 ; for b in range(B): g = slice(operands[b]) ; acc += (g, each(g)) ; measure = whole(acc)

By example: weighted sums of gradients, inner products, and functions of whole gradients, in such a
loop. For sums with weights and products it is the way where operands cannot take the weights: what
is rounded, and what `vmap` cannot lift.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.ir.constants import Arrays, summable, widened
from hlo_surgery.passes.measures.measures import (
    Defined,
    Gram,
    Measure,
    Norms,
    Phi,
    TakingCost,
    summed_rows,
)
from hlo_surgery.passes.measures.moments import without_padding
from hlo_surgery.passes.strategies.gradient_costs import (
    Counts,
    Predicted,
    Roofline,
    Schedule,
    patches,
    plain_seconds,
    seconds_alone,
)
from hlo_surgery.passes.strategies.loop_examples import Taken, looped_gradients
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Chosen,
    Computed,
    Measured,
    Measures,
    Strategy,
    Task,
    in_own_dtype,
    one_by_one,
    taken,
    taking_seconds,
)
from hlo_surgery.passes.terms.scaling import norms_of_rows
from hlo_surgery.passes.terms.slice_functions import SliceFunction, jointly, over_examples
from hlo_surgery.passes.terms.steps import Known


def lifted_gradients(function: SliceFunction, known: Known, size: int) -> Array:
    """[B, *parameter]: every example's gradient."""
    return over_examples(function, known, size, function.of_one)


def _applies(task: Task, measure: Measure) -> bool:
    """Whether the examples' gradients define it."""
    return isinstance(measure, Defined)


def _predict(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """All gradients written and read, unless XLA fuses that; instead of the plain gradient."""
    counts, device = task.counts, task.device
    made = seconds_alone(counts, device, counts.size)
    fused = _reads_once(task, measures) and _is_fused(counts, device)
    if fused and all(isinstance(m, Norms) for m in measures):
        # Summed while the next ones are contracted.
        made, moved = max(made, counts.size * counts.elements * device.read_element), 0
    else:
        # The gradients' own sum, a measure's, and that of squares.
        others = any(isinstance(m, Defined) and m.is_sum for m in measures)
        sums = 0 if fused else 1 + others + any(isinstance(m, Norms) for m in measures)
        moved = device.lifting_seconds(counts.held, counts.size, sums)
    held = patches(counts, device) + (0 if fused else counts.size * counts.held)
    held += counts.size * taken(task, measures).held
    seconds = made + moved + taking_seconds(task, measures, times=1)
    return Predicted(seconds - plain_seconds(counts, device), held)


def _reads_once(task: Task, measures: Measures) -> bool:
    """Whether gradients are used where they are made: XLA fuses a contraction into one use alone,
    which is no contraction itself.

    Norms are of other sums than those over the examples, and are fused only where they take no
    second way, for which gradients are held.
    """
    counts, device = task.counts, task.device
    alone = len(counts.sites) == 1 and counts.sites[0].contracts
    kinds = {type(m) for m in measures}
    squared_there = device.fuses_lifted and counts.held <= device.fused_sum
    again = Gram in kinds or (Norms in kinds and not squared_there)
    return alone and not again and taken(task, measures) == TakingCost()


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
    real, count = task.examples.flags(known), task.examples.count(known)
    measured: Measured = {
        measure: without_padding(_norms(task, measure, gradients), real)
        if isinstance(measure, Norms)
        else measure.of(gradients, real, count)
        for measure in asked.measures
        if isinstance(measure, Defined)
    }
    # Divided before they are summed, since the sum of B gradients may overflow where their mean
    # does not.
    reuse, size = asked.chosen.reuse, task.examples.size
    total = task.total(summed_rows(gradients / size)) if reuse else None
    return Computed(in_own_dtype(task, measured), total)


def _norms(task: Task, measure: Norms, gradients: Array) -> Array:
    """All at once, which decides once whether squares are in the range of floats. A TPU, whose
    float64 has the range of float32, sums them where they are made.
    """
    is_wide = not task.device.fuses_lifted
    return norms_of_rows(widened(gradients), measure.ord, wide=is_wide)


LIFT = Strategy(
    "lift",
    _applies,
    _predict,
    one_by_one(_emit),
    words="each example's gradient, all at once",
)


def _predict_loop(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """A chunk of gradients at a time and two accumulators moved; instead of the plain gradient.

    Steps that are written out are fused with the accumulation, and so take as long as the longer of
    both.
    """
    counts, device, chunk = task.counts, task.device, schedule.chunk
    plain, made = plain_seconds(counts, device), seconds_alone(counts, device, chunk)
    steps, own = -(-counts.size // chunk), taken(task, measures).held
    taking = taking_seconds(task, measures, steps)
    if any(isinstance(m, Norms) for m in measures):
        # Each gradient is read for its squares.
        reading = device.moving_seconds(counts.gradient, counts.held)
        taking += counts.size * max(reading, counts.elements * device.read_element)
    if schedule.written_out:
        accumulating = device.moving_seconds(counts.size * 4 * counts.held, 2 * counts.held)
        seconds = max(made, accumulating) + taking
        return Predicted(seconds - plain, 2 * (counts.held + own))
    moved = (4 * steps + 2 * counts.size) * counts.held
    held = (2 + chunk) * (counts.held + own)
    going = steps * (1 + counts.windows) * device.step_seconds
    seconds = made + device.moving_seconds(moved, held) + going + taking
    return Predicted(seconds - plain, held + chunk * patches(counts, device) // counts.size)


def with_common_chunks(chosen: Mapping[int, Chosen]) -> dict[int, Chosen]:
    """The same, but gradients of one loop take as many examples at once as the largest may."""
    common = dict(chosen)
    for group in _groups({i: one for i, one in chosen.items() if one.made_by(LOOP)}):
        schedule = _in_common([chosen[i].schedule for i in group])
        common |= {i: replace(chosen[i], schedule=schedule) for i in group}
    return common


def _groups(chosen: Mapping[int, Chosen]) -> list[list[int]]:
    """Which gradients share a loop, by number: those with common operands, such as a layer's."""
    groups: list[tuple[set[Any], list[int]]] = []
    for i, one in chosen.items():
        function = one.task.looped
        kind = one.schedule.written_out
        operands: set[Any] = {(kind, *key) for key in function.inputs if key[1] is not None}
        touching = [group for group in groups if group[0] & operands]
        groups = [group for group in groups if group not in touching]
        members = [n for group in touching for n in group[1]]
        groups.append((operands.union(*(group[0] for group in touching)), [*members, i]))
    return [members for _, members in groups]


def _emit_loop(asked: Sequence[Asked], known: Known) -> list[Computed]:
    """What is summed is accumulated over the examples; what is not is stacked."""
    examples, schedule = asked[0].task.examples, asked[0].chosen.schedule
    count = examples.count(known)
    means = [_centre(one, known) for one in asked]
    branches = _branches(schedule, asked[0].task.device)

    def of_one(measure: Defined, gradient: Array, mean: Array) -> Any:
        if branches and isinstance(measure, Norms):
            return norms_of_rows(widened(gradient)[None], measure.ord)[0]
        return measure.each(gradient, mean)

    def taken(gradients: Arrays, is_sum: bool) -> list[list[Any]]:
        each = zip(asked, gradients, means, strict=True)
        return [[of_one(m, g, mean) for m in _measures(one, is_sum)] for one, g, mean in each]

    def take(gradients: Arrays) -> Taken:
        # A B-th of each gradient, where the mean is wanted: the sum of B of them may overflow.
        pairs = zip(asked, gradients, strict=True)
        shares = [g / examples.size if one.chosen.reuse else None for one, g in pairs]
        return (taken(gradients, True), shares), taken(gradients, False)

    function = jointly([one.task.looped for one in asked])
    flags = examples.flags(known)
    (sums, shares), rows = looped_gradients(
        function, known, examples.size, schedule, take, counted=flags
    )
    return [_computed(*each, count) for each in zip(asked, sums, rows, shares, strict=True)]


def _branches(schedule: Schedule, device: Roofline) -> bool:
    """Whether a step that takes one example, without `vmap`, had better branch than sum its
    squares in float64: where it is in memory, and reading is what takes time.
    """
    alone = schedule.chunk == schedule.shards == 1
    return alone and device.read_element > 0 and not device.fuses_lifted


def _centre(one: Asked, known: Known) -> Array:
    """The mean gradient; the module's own may count padding, and NaN in it."""
    examples = one.task.examples
    real = examples.flags(known)
    if real is None or not any(m.is_about_mean for m in _measures(one, True)):
        return examples.mean_gradient(one.task.gradient, known)
    ones = jnp.ones(examples.size, one.task.dtype)
    return one.chosen.weighting(one.chosen, known, ones, real, None) / examples.count(known)


def _measures(one: Asked, is_sum: bool) -> list[Defined]:
    return [m for m in one.measures if isinstance(m, Defined) and m.is_sum is is_sum]


def _computed(
    one: Asked, sums: list[Any], rows: list[Any], mean: Array | None, count: Any
) -> Computed:
    """The measures of one gradient, from what the loop has summed and stacked."""
    taken = zip([*_measures(one, True), *_measures(one, False)], [*sums, *rows], strict=True)
    measured: Measured = {measure: measure.whole(found, count) for measure, found in taken}
    gradient = None if mean is None else one.task.total(mean)
    return Computed(in_own_dtype(one.task, measured), gradient)


LOOP = Strategy(
    "loop",
    _applies,
    _predict_loop,
    _emit_loop,
    words="each example's gradient, a few at a time",
    together=_groups,
)


Function = Callable[[Arrays], Any]


def weighted_by_example(
    chosen: Chosen,
    known: Known,
    weights: Array,
    finite: Array | None,
    phi: Phi | None,
) -> Array:
    """The sum over b of w_b g_b, or of phi of it, in at least float32; of the `finite` alone."""
    size = weights.shape[0]

    def scaled(gradient: Array, weight: Array) -> tuple[Array, tuple[()]]:
        wide = widened(gradient)
        weighted = wide * weight.astype(wide.dtype)
        return weighted if phi is None else phi(weighted), ()

    function, schedule = chosen.task.looped, chosen.schedule
    return looped_gradients(function, known, size, schedule, scaled, (weights,), finite)[0]


def along_by_example(chosen: Chosen, known: Known, direction: Array) -> Array:
    """Inner products of each example's own gradient with a direction, [B], at least float32; with
    m directions [m, *parameter], [B, m].
    """
    against = widened(direction).conj()

    def product(gradient: Array) -> tuple[tuple[()], Array]:
        own = widened(gradient)
        return (), jnp.real(jnp.tensordot(against, own, own.ndim, precision="highest"))

    function, size = chosen.task.looped, chosen.task.examples.size
    return looped_gradients(function, known, size, chosen.schedule, product)[1]


def sum_over_examples(chosen: Sequence[Chosen], known: Known, function: Function) -> Any:
    """The sum of `function`'s arrays over the examples that are no padding; it is given one
    example's gradients, each in at least float32.
    """
    examples = chosen[0].task.examples

    def take(gradients: Arrays) -> tuple[Any, tuple[()]]:
        return jax.tree.map(summable, function([widened(g) for g in gradients])), ()

    together = jointly([one.task.looped for one in chosen])
    schedule = _in_common([one.schedule for one in chosen])
    flags = examples.flags(known)
    return looped_gradients(together, known, examples.size, schedule, take, counted=flags)[0]


def _in_common(schedules: Sequence[Schedule]) -> Schedule:
    """As many examples at a time as the gradient that takes the fewest; one that is written out
    goes along with those that are not.
    """
    written_out = all(each.written_out for each in schedules)
    chunks = [each.chunk for each in schedules if each.written_out == written_out]
    return Schedule(min(chunks), min(each.shards for each in schedules), written_out)
