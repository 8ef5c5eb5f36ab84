"""Replacement: given a block's gradients, all statistics asked for, computed at the block's end.

What a loop stacks slice by slice is looked at inside the loop; what else loops and branches make is
lifted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hlo_surgery.passes.emit.splice import ClosedOver, Scope, splice_known, within
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, Values
from hlo_surgery.passes.loops.lift_values import lift_control_flow
from hlo_surgery.passes.loops.loop_sums import Part, Scan, replace_update, scanned_gradient, stacked
from hlo_surgery.passes.measures.measures import Defined, Measure
from hlo_surgery.passes.rewriting.measurements import Measurements
from hlo_surgery.passes.strategies.choice import choose, compute_measures
from hlo_surgery.passes.strategies.einsums.einsums import einsums_of
from hlo_surgery.passes.strategies.einsums.factors import made_before
from hlo_surgery.passes.strategies.einsums.fused import FUSED, weighted_sum
from hlo_surgery.passes.strategies.gradient_costs import (
    PLATFORMS,
    Limits,
    Roofline,
    SitePlan,
    site_plan,
)
from hlo_surgery.passes.strategies.lift import with_common_chunks
from hlo_surgery.passes.strategies.strategy import (
    Chosen,
    Computed,
    Examples,
    Measured,
    Task,
    is_precise,
    makes_float32,
)
from hlo_surgery.passes.terms.gradient_slices import gradient_slice
from hlo_surgery.passes.terms.slice_functions import (
    Contracting,
    is_short_ranged,
    is_widenable,
)
from hlo_surgery.passes.terms.steps import Axes, GradientSlice, Known

Finish = Callable[[Measurements], Arrays]


@dataclass(frozen=True)
class Asking:
    """How measures are asked for. `reweights`: whether sums of gradients with weights are made;
    `gradients`: how many targets are some; `asked_by`: the names of the statistics that
    are made of a measure; `platform`: for which what is asked is lowered, None being JAX's default;
    `devices`: how many the module names.
    """

    examples: Examples
    device: Roofline
    limits: Limits
    reweights: bool
    gradients: int
    closed_over: ClosedOver
    asked_by: Mapping[Measure, Sequence[str]]
    platform: str | None = None
    devices: int = 1


@dataclass(frozen=True)
class Target:
    """A gradient, as the operand of an op that stays when loops are rebuilt, and what is asked of
    it.
    """

    user: Operation
    operand: int
    name: str
    measures: Sequence[Measure]

    @property
    def value(self) -> Value:
        """The gradient."""
        return self.user.operands[self.operand]


@dataclass(frozen=True)
class Answer:
    """What was chosen for a gradient, and the gradient where it came from the examples' own.

    Of what a loop stacks, it was chosen for one of its slices, of which there are `trips`. `sites`,
    `tail`, the gradient's size in `bytes` and whether examples reach it are told apart from their
    ops, which may be gone when they are asked for.
    """

    chosen: Chosen
    sites: tuple[SitePlan, ...]
    tail: tuple[str, ...]
    bytes: int
    is_reached: bool
    gradient: Value | None = None
    trips: int = 1


# The answer for each target, and what was made of their measures.
Answered = tuple[list[Answer], Values]


def _answer_of(chosen: Chosen, gradient: Value | None) -> Answer:
    """The answer for a gradient of the block itself."""
    sliced = chosen.task.sliced
    sites = tuple(site_plan(step.op) for step in sliced.sites)
    is_reached = bool(sliced.inputs and (sliced.steps or sliced.output[1] is not None))
    own = chosen.task.counts.gradient
    return Answer(chosen, sites, _names(sliced), own, is_reached, gradient)


def _names(sliced: GradientSlice) -> tuple[str, ...]:
    """The ops of a tail."""
    return tuple(step.op.name for step in sliced.tail)


def block_statistics(
    axes: Axes,
    block: Block,
    targets: Sequence[Target],
    asking: Asking,
    finish: Finish,
) -> Answered:
    """Every target's measures at the end of their block, and what `finish` makes of them."""
    plain = [i for i, target in enumerate(targets) if _scan(axes, target, asking) is None]
    values = [targets[i].value for i in plain]
    if asking.examples.size > 1:
        lift_control_flow(axes, block, values)
    # What is lifted rebuilds loops.
    left = [(i, target) for i, target in enumerate(targets) if i not in plain]
    scans = {i: scan for i, target in left if (scan := _scan(axes, target, asking)) is not None}
    stacked: dict[int, _Stacked] = {}
    while remaining := {i: scan for i, scan in scans.items() if i not in stacked}:
        loop = next(iter(remaining.values())).loop
        together = {i: scan for i, scan in remaining.items() if scan.loop == loop}
        stacked |= _inside_loop(axes, loop, together, targets, asking)
    chosen = {i: _chosen(axes, targets[i], asking) for i in plain}
    return _at_end(axes, block, targets, chosen, stacked, asking, finish)


@dataclass(frozen=True)
class _Stacked:
    """What a loop stacked for a target: gradient, measures, and what was chosen in the loop."""

    result: Value
    measures: Mapping[Measure, Value]
    inside: Answer


def _scan(axes: Axes, target: Target, asking: Asking) -> Scan | None:
    """The scan that stacks a target, if all that is asked for can be stacked with it."""
    if asking.examples.size == 1 or asking.reweights:
        return None
    scan = scanned_gradient(axes, target.value)
    if scan is None or not all(m.is_stackable(scan.behind, scan.write) for m in target.measures):
        return None
    return scan


def _inside_loop(
    axes: Axes,
    loop: Operation,
    scans: Mapping[int, Scan],
    targets: Sequence[Target],
    asking: Asking,
) -> dict[int, _Stacked]:
    """Compute the measures of the updates in the loop's body, and stack them in the same loop."""
    updates = [replace(targets[i], user=scan.write, operand=1) for i, scan in scans.items()]
    finish = partial(_in_order, updates)
    answers, made = block_statistics(axes, mlir.blocks(loop)[1], updates, asking, finish)
    for scan, answer in zip(scans.values(), answers, strict=True):
        if answer.gradient is not None:
            replace_update(scan.write, answer.gradient)
    owners = [(i, measure) for i in scans for measure in targets[i].measures]
    parts = [_part(scans[i], m, v) for (i, m), v in zip(owners, made, strict=True)]
    renewed, stacks = stacked(axes, loop, parts)
    results = dict(zip(owners, stacks, strict=True))
    return {
        i: _Stacked(
            renewed.results[scan.number],
            {measure: results[i, measure] for measure in targets[i].measures},
            replace(answer, trips=answer.trips * len(scan.order.places)),
        )
        for (i, scan), answer in zip(scans.items(), answers, strict=True)
    }


def _in_order(asked: Sequence[Target], found: Measurements) -> Arrays:
    """The measures as asked for; each strategy has found its own, in an order of their own."""
    pairs = zip(asked, found.measured, strict=True)
    return [measured[measure] for target, measured in pairs for measure in target.measures]


def _part(scan: Scan, measure: Measure, value: Value) -> Part:
    """A sum stacks as its update does; what is one an example, along a first axis of its own."""
    is_sum = isinstance(measure, Defined) and measure.is_sum
    return Part(value, scan.order, scan.dim if is_sum else None)


def _chosen(axes: Axes, target: Target, asking: Asking) -> Chosen:
    alone = GradientSlice((target.value, None), ())
    device, examples = asking.device, asking.examples
    sliced = gradient_slice(axes, target.value) if examples.size > 1 else alone
    wide = examples.size > 1 and is_widenable(sliced)
    late = not wide and is_short_ranged(sliced)
    how = Contracting(
        group_patches=device.group_patches,
        library=device.library_features,
        wide=wide,
        upcast=not device.narrow_operands,
        late=late,
    )
    # A weight bounds the gradient that it scales only if its norm is that of the same roundings.
    alike = wide or is_precise(sliced) or not asking.reweights
    einsums = einsums_of(sliced) if alike else []
    precise = wide or makes_float32(sliced)
    before = made_before(axes, sliced)
    ours = (target.name, target.value, sliced, how, axes.count, einsums)
    task = Task(*ours, examples, device, precise, before, asking.devices)
    return choose(task, target.measures, asking.limits, asking.reweights)


def _at_end(
    axes: Axes,
    block: Block,
    targets: Sequence[Target],
    chosen: Mapping[int, Chosen],
    stacked: Mapping[int, _Stacked],
    asking: Asking,
    finish: Finish,
) -> Answered:
    """One splice for all that is left to compute in this block."""
    chosen = with_common_chunks(chosen)
    tails = {
        i: gradient_slice(replace(axes, lifted={s.result: s.result}), targets[i].value)
        for i, s in stacked.items()
    }
    tasks = [one.task for one in chosen.values()]
    plain = [v for task in tasks for v in task.function.values]
    behind = [v for tail in tails.values() for v, _ in tail.inputs]
    stacks = [v for s in stacked.values() for v in s.measures.values()]
    outputs = [target.value for target in targets]
    taken = [*plain, *behind, *stacks, *outputs, *asking.examples.values]
    reused = [i for i in chosen if chosen[i].reuse]

    def replacement(known: Known) -> Arrays:
        computed = compute_measures(chosen, known, asking.asked_by)
        for i, s in stacked.items():
            names = [name for m in s.measures for name in asking.asked_by.get(m, ())]
            output = within("output", [targets[i].name])
            with within("strategy", ["stack"]), output, within("statistic", names):
                computed[i] = Computed(_behind_loop(s, tails[i], known))
        measured = [computed[i].measured for i in range(len(targets))]
        gradients = [gradient for i in reused if (gradient := computed[i].gradient) is not None]
        found = Measurements(asking.examples, asking.gradients, measured, chosen, known, outputs)
        return [*gradients, *finish(found)]

    made = splice_known(
        taken,
        replacement,
        mlir.return_operation(block),
        closed_over=asking.closed_over,
        scope=Scope("combine"),
        sources={t.name: t.sliced.sites[0].op for t in tasks if t.sliced.sites},
        platform=_platform(asking, chosen.values()),
    )
    gradients = dict(zip(reused, made, strict=False))
    answers = {i: _answer_of(one, gradients.get(i)) for i, one in chosen.items()}
    for i, s in stacked.items():
        tail = (*s.inside.tail, *_names(tails[i]))
        answers[i] = replace(s.inside, gradient=None, tail=tail)
    return [answers[i] for i in range(len(targets))], made[len(reused) :]


def _platform(asking: Asking, chosen: Iterable[Chosen]) -> str | None:
    """The platform of a kernel, if there is one among what was chosen, or else what is asked."""
    kernels = asking.device.kernels
    has_kernel = any(
        one.made_by(FUSED) or (asking.reweights and one.weighting is weighted_sum) for one in chosen
    )
    return PLATFORMS[kernels] if has_kernel and kernels else asking.platform


def _behind_loop(stacked: _Stacked, tail: GradientSlice, known: Known) -> Measured:
    """The measures of what a loop has stacked, behind the ops on the way to the gradient."""
    given = {key: known[key[0]] for key in tail.inputs}
    stacks = stacked.measures.items()
    return {m: m.behind(tail, known[stack], stacked.result, given) for m, stack in stacks}
