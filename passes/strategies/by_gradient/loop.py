"""Loop: measures by a loop over the examples, one for all gradients that have operands in common.

acc = 0 ; for b in range(B): g = slice(operands[b]) ; acc += (g, each(g)) ; measure = whole(acc)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import (
    Counts,
    Predicted,
    patches,
    plain_seconds,
    seconds_alone,
)
from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.emit.scopes import within
from hlo_surgery.passes.measures.measure import Defined, Measure
from hlo_surgery.passes.measures.measures import Norms
from hlo_surgery.passes.strategies.by_gradient.by_example import weighted_by_example
from hlo_surgery.passes.strategies.by_gradient.loop_examples import looped_gradients
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Chosen,
    Computed,
    Measured,
    Strategy,
    in_own_dtype,
)
from hlo_surgery.passes.strategies.taken import taken, taking_seconds
from hlo_surgery.passes.strategies.task import Known, Schedule, Task
from hlo_surgery.passes.terms.slice_functions import jointly


def _applies(task: Task, measure: Measure) -> bool:
    """Whether the examples' gradients define it."""
    return isinstance(measure, Defined)


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """A chunk of gradients at a time and two accumulators moved; instead of the plain gradient.

    Steps that are written out are fused with the accumulation, and so take as long as the longer of
    both.
    """
    counts, device, chunk = task.counts, task.device, schedule.chunk
    plain, made = plain_seconds(counts, device), seconds_alone(counts, device, chunk)
    steps, own = -(-counts.size // chunk), taken(task, measures).held
    taking = taking_seconds(task, measures, steps)
    if any(isinstance(m, Norms) for m in measures):
        taking += _norms_seconds(counts, device)
    if schedule.written_out:
        accumulating = device.moving_seconds(counts.size * 4 * counts.held, 2 * counts.held)
        seconds = max(made, accumulating) + taking
        return Predicted(seconds - plain, 2 * (counts.held + own))
    moved = (4 * steps + 2 * counts.size) * counts.held
    held = (2 + chunk) * (counts.held + own)
    seconds = made + device.moving_seconds(moved, held) + steps * device.step_seconds + taking
    return Predicted(seconds - plain, held + chunk * patches(counts, device) // counts.size)


def _norms_seconds(counts: Counts, device: Roofline) -> float:
    """Each gradient is read for its largest element, and for its squares."""
    moved = device.moving_seconds(counts.gradient, counts.held)
    return 2 * counts.size * max(moved, counts.elements * device.read_element)


def with_common_chunks(chosen: Mapping[int, Chosen]) -> dict[int, Chosen]:
    """The same, but gradients of one loop take as many examples at once as the largest may."""
    looped = [i for i, one in chosen.items() if one.made_by(LOOP)]
    common = dict(chosen)
    for group in _groups([chosen[i] for i in looped]):
        chunk = min(chosen[looped[n]].schedule.chunk for n in group)
        for i in (looped[n] for n in group):
            common[i] = replace(chosen[i], schedule=replace(chosen[i].schedule, chunk=chunk))
    return common


def _groups(chosen: Sequence[Chosen]) -> list[list[int]]:
    """Which gradients share a loop, by position: those with common operands, such as a layer's."""
    groups: list[tuple[set[Any], list[int]]] = []
    for i, one in enumerate(chosen):
        function = one.task.function
        kind = (function.liftable, one.schedule.written_out)
        operands: set[Any] = {(kind, *key) for key in function.inputs if key[1] is not None}
        touching = [group for group in groups if group[0] & operands]
        groups = [group for group in groups if group not in touching]
        members = [n for group in touching for n in group[1]]
        groups.append((operands.union(*(group[0] for group in touching)), [*members, i]))
    return [members for _, members in groups]


def _emit(asked: Sequence[Asked], known: Known) -> list[Computed]:
    computed: dict[int, Computed] = {}
    for group in _groups([one.chosen for one in asked]):
        with within("output", [asked[i].task.name for i in group]):
            made = _together([asked[i] for i in group], known)
        computed |= zip(group, made, strict=True)
    return [computed[i] for i in range(len(asked))]


def _together(asked: Sequence[Asked], known: Known) -> list[Computed]:
    """What is summed is accumulated over the examples; what is not is stacked."""
    examples, schedule = asked[0].task.examples, asked[0].chosen.schedule
    count = examples.count(known)
    means = [_centre(one, known) for one in asked]

    def taken(gradients: Sequence[jax.Array], is_sum: bool) -> list[list[Any]]:
        each = zip(asked, gradients, means, strict=True)
        return [[m.each(g, mean) for m in _measures(one, is_sum)] for one, g, mean in each]

    def summand(gradients: Sequence[jax.Array]) -> Any:
        # A B-th of each gradient, where the mean is wanted: the sum of B of them may overflow.
        pairs = zip(asked, gradients, strict=True)
        shares = [g / examples.size if one.chosen.reuse else None for one, g in pairs]
        return taken(gradients, is_sum=True), shares

    function = jointly([one.task.function for one in asked])
    loop = partial(looped_gradients, function, known, examples.size, schedule)
    row = partial(taken, is_sum=False)
    (sums, shares), rows = loop(summand, row, counted=examples.flags(known))
    return [_computed(*each, count) for each in zip(asked, sums, rows, shares, strict=True)]


def _centre(one: Asked, known: Known) -> jax.Array:
    """The mean gradient; the module's own may count padding, and NaN in it."""
    examples = one.task.examples
    padding = examples.padding(known)
    if padding is None or not any(m.is_about_mean for m in _measures(one, True)):
        return examples.mean_gradient(one.task.gradient, known)
    ones = jnp.ones(examples.size, one.task.dtype)
    return weighted_by_example(one.chosen, known, ones, padding.real) / padding.count


def _measures(one: Asked, is_sum: bool) -> list[Defined]:
    return [m for m in one.measures if isinstance(m, Defined) and m.is_sum is is_sum]


def _computed(
    one: Asked, sums: list[Any], rows: list[Any], mean: jax.Array | None, count: Any
) -> Computed:
    """The measures of one gradient, from what the loop has summed and stacked."""
    taken = zip([*_measures(one, True), *_measures(one, False)], [*sums, *rows], strict=True)
    measured: Measured = {measure: measure.whole(found, count) for measure, found in taken}
    gradient = None if mean is None else one.task.total(mean)
    return Computed(in_own_dtype(one.task, measured), gradient)


LOOP = Strategy(
    "loop",
    _applies,
    _predict,
    _emit,
    words="each example's own gradient, a few at a time in a loop",
)
