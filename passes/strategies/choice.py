"""Choice: for each gradient and measure, the exact strategy predicted to be fastest in budget.

The table of strategies, and what all that were chosen compute.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hlo_surgery.passes.emit.splice import within
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.measures.measures import (
    MEAN,
    Gram,
    Measure,
    OfPositions,
    PerExampleGradients,
)
from hlo_surgery.passes.strategies.alike import emitted
from hlo_surgery.passes.strategies.einsums.fused import FUSED, weighted_sum
from hlo_surgery.passes.strategies.einsums.ghost import GHOST
from hlo_surgery.passes.strategies.einsums.kronecker import KRONECKER, PROJECT
from hlo_surgery.passes.strategies.einsums.segments import SEGMENTS, unmet
from hlo_surgery.passes.strategies.gradient_costs import Limits, Schedule, plain_seconds
from hlo_surgery.passes.strategies.lift import LIFT, LOOP, weighted_by_example
from hlo_surgery.passes.strategies.square import SQUARE
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Chosen,
    Computed,
    Measures,
    Strategy,
    Task,
    Weighting,
    taken,
)
from hlo_surgery.passes.terms.site_functions import scatters_onto
from hlo_surgery.passes.terms.steps import Known

# Of those that apply and pay, the first is taken; the last two make any measure that gradients
# define, from each example's own.
SHORTCUTS: tuple[Strategy, ...] = (
    SQUARE,
    SEGMENTS,
    GHOST,
    PROJECT,
    KRONECKER,
    FUSED,
)
STRATEGIES: tuple[Strategy, ...] = (*SHORTCUTS, LIFT, LOOP)
# What each does, and what is made of sums with weights, which no row of the table is.
WORDS = {
    **{strategy.name: strategy.words for strategy in STRATEGIES},
    "reweight": "contracted again, the examples weighted",
}
# What can be asked for.
WAYS = ("auto", *(strategy.name for strategy in STRATEGIES))


def compute_measures(
    chosen: Mapping[int, Chosen], known: Known, asked_by: Mapping[Measure, Sequence[str]]
) -> dict[int, Computed]:
    """Every measure of each gradient, and the gradient where it is reused. `asked_by`: which
    statistics are made of a measure.
    """
    computed = {i: Computed({}) for i in chosen}
    calls: dict[Any, Any] = {}
    for strategy in STRATEGIES:
        measures = {i: made for i, one in chosen.items() if (made := one.made_by(strategy))}
        wanted = [name for each in measures.values() for m in each for name in asked_by.get(m, ())]
        with within("strategy", [strategy.name]), within("statistic", wanted):
            for group in strategy.together({i: chosen[i] for i in measures}):
                asked = [Asked(chosen[i], measures[i]) for i in group]
                with within("output", [one.task.name for one in asked]):
                    made = emitted(strategy, asked, known, calls)
                for i, more in zip(group, made, strict=True):
                    one = computed[i]
                    gradient = more.gradient if one.gradient is None else one.gradient
                    reused = gradient if chosen[i].reuse else None
                    computed[i] = Computed(one.measured | more.measured, reused)
    return computed


SEVERAL_DEVICES = (
    "strategy='fused' is a kernel for one device, and the examples lie on {shards}: call the "
    "function inside jax.shard_map, where each device has its own examples, or leave strategy at "
    "'auto'"
)


def choose(task: Task, measures: Measures, options: Limits, reweights: bool = False) -> Chosen:
    """The strategy for each measure of a gradient. `reweights`: sums of it with weights are asked
    for as well. Raises Refusal for measures by positions that do not apply, ValueError for a
    shortcut that is forced and does not.
    """
    schedule = _schedule(task, measures, options)
    instantiating = _instantiating(task, measures, schedule, options)
    possible = _possible(task, options)
    applying = {m: _applying(task, m, possible) for m in measures}
    for measure in measures:
        _refuse_unless_applying(task, measure, options.strategy, applying[measure])
    strategies = {
        m: _strategy(task, m, applying[m], schedule, instantiating, options) for m in measures
    }
    makes = {s: [m for m in measures if s in applying[m]] for s in STRATEGIES}
    predicted = {s.name: s.predict(task, made, schedule) for s, made in makes.items() if made}
    if reweights and LIFT in strategies.values() and _keeps_lifted(task):
        strategies[PerExampleGradients()] = LIFT
    reuse = _reuses(task, schedule, set(strategies.values()), options)
    weighting = _weighting(task, schedule, possible, options)
    return Chosen(task, strategies, instantiating, schedule, reuse, predicted, weighting)


def _possible(task: Task, options: Limits) -> tuple[Strategy, ...]:
    """Of a single example's gradient the batch's is one, and there is nothing to save. XLA does not
    partition kernels.

    Raises ValueError where they are asked for, and examples lie on several devices.
    """
    if task.examples.size == 1:
        return (LIFT, LOOP)
    asked, several = options.strategy == FUSED.name, (options.shards or 1) > 1
    if asked and several:
        raise ValueError(SEVERAL_DEVICES.format(shards=options.shards))
    kernels = asked or (task.device.kernels is not None and not several)
    return tuple(strategy for strategy in STRATEGIES if kernels or strategy is not FUSED)


def _applying(task: Task, measure: Measure, possible: Sequence[Strategy]) -> list[Strategy]:
    """Those that make a measure. Of what is made before the positions are not known."""
    unknown = isinstance(measure, OfPositions) and task.made_before is not None
    return [] if unknown else [s for s in possible if s.applies(task, measure)]


def _strategy(
    task: Task,
    measure: Measure,
    applying: Sequence[Strategy],
    schedule: Schedule,
    instantiating: Strategy,
    options: Limits,
) -> Strategy:
    if isinstance(measure, OfPositions):
        # Such a measure has one definition, and so one strategy.
        if applying:
            return applying[0]
        raise Refusal(unmet(task, measure))
    if options.strategy == FUSED.name and FUSED in applying:
        return FUSED
    free = options.strategy in ("auto", FUSED.name)
    otherwise = instantiating.predict(task, [measure], schedule)
    for shortcut in (s for s in SHORTCUTS if s in applying):
        forced = options.strategy == shortcut.name
        if forced or (free and shortcut.pays(task, measure, schedule, otherwise)):
            return shortcut
    if isinstance(measure, Gram):
        return LIFT if LIFT in applying else LOOP
    return instantiating


def _weighting(
    task: Task, schedule: Schedule, possible: Sequence[Strategy], options: Limits
) -> Weighting:
    """The kernel, which takes weights as numbers of the examples, where it would make their mean,
    and the gradients that norms are of are not rounded either.
    """
    if FUSED not in possible or not task.how.wide or not FUSED.applies(task, MEAN):
        return weighted_by_example
    otherwise = LOOP.predict(task, [MEAN], schedule)
    pays = options.strategy == "auto" and FUSED.pays(task, MEAN, schedule, otherwise)
    return weighted_sum if pays or options.strategy == FUSED.name else weighted_by_example


def _refuse_unless_applying(
    task: Task, measure: Measure, requested: str, applying: Sequence[Strategy]
) -> None:
    """Raises ValueError for a shortcut that was asked for and makes no such measure. Kernels are
    asked for wherever they apply.
    """
    shortcuts = {strategy.name for strategy in SHORTCUTS if strategy is not FUSED}
    applies = requested in {strategy.name for strategy in applying}
    many = task.examples.size > 1 and not isinstance(measure, OfPositions)
    if many and requested in shortcuts and not applies:
        what = getattr(measure, "name", type(measure).__name__.lower())
        raise ValueError(
            f"strategy={requested!r} does not apply to {what} of {task.name}, and what is forced "
            "must apply to every statistic of every gradient; leave it at 'auto', which takes it "
            "where it applies"
        )


def _schedule(task: Task, measures: Measures, options: Limits) -> Schedule:
    """As many examples at once as budget and device allow, on each device with examples."""
    shards = options.shards or 1
    # Of more devices than examples lie on, each may have a part of the model. Nothing is known
    # where examples are not told to be on several.
    parts = max(1, task.devices // shards) if shards > 1 else 1
    written_out = _is_written_out(task, shards, parts)
    # One example's rows of a ragged axis are as many as they are.
    single = written_out or task.counts.windows > 0
    chunk = 1 if single else _chunk(task, measures, options, shards)
    return Schedule(chunk, shards, written_out, parts)


def _is_written_out(task: Task, shards: int, parts: int) -> bool:
    """Whether the steps of a loop are few enough to be written out, and what XLA then fuses: where
    a gradient is in parts, with each of them.
    """
    sites = task.sliced.sites
    scattered = len(scatters_onto(task.sliced.steps))
    contractions = [site.op.name for site in sites].count("stablehlo.dot_general")
    alone = contractions == 1 and len(sites) == 1 + scattered
    few = -(-task.examples.size // shards) <= task.device.written_out
    few = few and not task.counts.windows
    return alone and few and (scattered > 0 or task.counts.gradient // parts <= task.device.cache)


def _chunk(task: Task, measures: Measures, options: Limits, shards: int) -> int:
    held = task.counts.held + taken(task, measures).held
    fitting = _budget(task, options) // max(held, 1)
    most = max(1, min(fitting, task.device.widest_chunk, task.examples.size))
    return _even(task.examples.size // math.gcd(task.examples.size, shards), most)


def _even(count: int, most: int) -> int:
    """As many at a time as leave no rest, if those are not far fewer: XLA does not wait with a rest
    until a loop is done, nor with a loop of one step, and so holds the gradients of both.
    """
    dividing = max(each for each in range(1, min(most, count) + 1) if count % each == 0)
    return dividing if 2 * dividing >= most else most


def _budget(task: Task, options: Limits) -> int:
    """Up to what the device says, or half of what the sites read, temporaries go unnoticed beside
    those of the gradient itself.
    """
    return options.memory_budget or max(task.device.unnoticed, task.counts.read // 2)


def _instantiating(task: Task, measures: Measures, schedule: Schedule, options: Limits) -> Strategy:
    """The faster way to examples' gradients; lifting only in budget, or if loops take no less."""
    single = task.examples.size == 1
    if options.strategy == "loop" and not single:
        return LOOP
    if single or options.strategy == "lift":
        return LIFT
    lift, loop = (strategy.predict(task, measures, schedule) for strategy in (LIFT, LOOP))
    fits = lift.temporaries <= max(_budget(task, options), loop.temporaries)
    return LIFT if fits and lift.seconds <= loop.seconds else LOOP


def _keeps_lifted(task: Task) -> bool:
    """Whether lifted gradients are better kept for sums with weights than contracted again: they
    take no more memory than what they are contracted from, and less time.
    """
    counts, device = task.counts, task.device
    reading = device.lifting_seconds(counts.held, counts.size, 1)
    is_less = reading < plain_seconds(counts, device) and not device.fuses_lifted
    return is_less and counts.size * counts.held <= counts.read


def _reuses(task: Task, schedule: Schedule, taken: set[Strategy], options: Limits) -> bool:
    """Whether the gradient is taken from the tensors that hold each example's own.

    It is not where that would round each example's before they are summed.
    """
    requested, counts = options.reuse_gradient, task.counts
    possible = bool(task.sliced.sites) and bool(taken & {LIFT, LOOP, FUSED}) and task.precise
    if not possible or requested is not None or LOOP not in taken or schedule.written_out:
        return possible and requested is not False
    steps = -(-counts.size // schedule.chunk)
    accumulated = 2 * steps * counts.gradient
    moving = task.device.moving_seconds(accumulated, 3 * counts.gradient)
    return moving <= plain_seconds(counts, task.device)
