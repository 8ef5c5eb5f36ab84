"""Replacement: given a block's gradients, all statistics asked for, computed at the block's end.

What a loop stacks slice by slice is looked at inside the loop; what else loops and branches make is
lifted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.loops.lift_values import lift_control_flow
from hlo_surgery.passes.loops.scanned_gradients import (
    Scan,
    Stack,
    replace_update,
    scanned_gradient,
    stack_values,
)
from hlo_surgery.passes.measures.measures import Defined, Measure
from hlo_surgery.passes.strategies.ghost.ghost_paths import ghost_paths
from hlo_surgery.passes.strategies.loop import with_common_chunks
from hlo_surgery.passes.strategies.strategy import Chosen, Computed, Measured
from hlo_surgery.passes.strategies.table import compute_measures
from hlo_surgery.passes.strategies.task import Task, is_precise, makes_float32
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.gradient_slices import GradientSlice, gradient_slice
from hlo_surgery.passes.terms.slice_functions import Contracting, slice_function
from hlo_surgery.passes.terms.wide_slices import is_widenable
from hlo_surgery.planning.choice import choose
from hlo_surgery.planning.output_plan import output_plan, repeated_plan, stacked_plan
from hlo_surgery.planning.plan import OutputPlan
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.results import Measurements


@dataclass(frozen=True)
class Target:
    """A gradient, as the operand of an op that stays when loops are rebuilt."""

    user: Operation
    operand: int
    name: str

    @property
    def value(self) -> Value:
        """The gradient."""
        return self.user.operands[self.operand]


@dataclass(frozen=True)
class Answer:
    """One gradient's plan, and the gradient where it came from the examples' own in one tensor."""

    plan: OutputPlan
    gradient: Value | None = None


Finish = Callable[[Measurements], Sequence[jax.Array]]


def block_statistics(
    axes: Axes,
    block: Block,
    targets: Sequence[Target],
    measures: Sequence[Sequence[Measure]],
    reweights: bool,
    request: Request,
    finish: Finish,
) -> tuple[list[Answer], list[Value]]:
    """Every target's measures at the end of their block, and what `finish` makes of them.

    `reweights`: whether it makes sums of gradients with weights.
    """
    plain = [
        i
        for i in range(len(targets))
        if _scan(axes, targets[i], measures[i], reweights, request) is None
    ]
    lifted = (
        lift_control_flow(axes, block, [targets[i].value for i in plain])
        if request.size > 1
        else {}
    )
    found = {
        i: _scan(axes, t, measures[i], reweights, request)
        for i, t in enumerate(targets)
        if i not in plain
    }
    scans = {i: scan for i, scan in found.items() if scan is not None}
    stacked: dict[int, _Stacked] = {}
    while remaining := {i: scan for i, scan in scans.items() if i not in stacked}:
        loop = next(iter(remaining.values())).loop
        together = {i: scan for i, scan in remaining.items() if mlir.is_same(scan.loop, loop)}
        stacked |= _inside_loop(axes, loop, together, targets, measures, request, lifted)
    chosen = {i: _chosen(axes, targets[i], measures[i], reweights, request, lifted) for i in plain}
    return _at_end(axes, block, targets, chosen, stacked, request, finish)


@dataclass(frozen=True)
class _Stacked:
    """What a loop stacked for a target: gradient, measures, and the plan in the loop."""

    result: Value
    measures: Mapping[Measure, Value]
    plan: OutputPlan


def _scan(
    axes: Axes, target: Target, measures: Sequence[Measure], reweights: bool, request: Request
) -> Scan | None:
    """The scan that stacks a target, if all that is asked for can be stacked with it."""
    if request.size == 1 or reweights:
        return None
    scan = scanned_gradient(axes, target.value)
    return scan if scan is not None and all(_is_stackable(scan, m) for m in measures) else None


def _is_stackable(scan: Scan, measure: Measure) -> bool:
    """Whether a measure of the stack can be had from the measures of its slices."""
    return isinstance(measure, Defined) and measure.is_stackable(scan.moves_only, scan.keeps_norms)


def _inside_loop(
    axes: Axes,
    loop: Operation,
    scans: Mapping[int, Scan],
    targets: Sequence[Target],
    measures: Sequence[Sequence[Measure]],
    request: Request,
    lifted: dict[Value, Value],
) -> dict[int, _Stacked]:
    """Compute the measures of the updates in the loop's body, and stack them in the same loop."""
    body = loop.regions[1].blocks[0]
    trips = len(next(iter((counter_values(loop) or {}).values())))
    updates = [Target(scan.write, 1, targets[i].name) for i, scan in scans.items()]
    asked = [measures[i] for i in scans]
    answers, made = block_statistics(
        axes, body, updates, asked, False, request, partial(_in_order, asked)
    )
    for scan, answer in zip(scans.values(), answers, strict=True):
        if answer.gradient is not None:
            replace_update(scan.write, answer.gradient)
    owners = [(i, measure) for i in scans for measure in measures[i]]
    stacks = [
        _stack_like(scans[i], measure, value)
        for (i, measure), value in zip(owners, made, strict=True)
    ]
    zeros = splice(
        [], lambda: [jnp.zeros(stack.shape, dtype_of(stack.value)) for stack in stacks], loop
    )
    renewed = stack_values(axes, loop, stacks, zeros, lifted)
    results = dict(zip(owners, mlir.results(renewed)[-len(stacks) :], strict=True))
    return {
        i: _Stacked(
            renewed.results[scan.number],
            {measure: results[i, measure] for measure in measures[i]},
            repeated_plan(answer.plan, trips),
        )
        for (i, scan), answer in zip(scans.items(), answers, strict=True)
    }


def _in_order(asked: Sequence[Sequence[Measure]], found: Measurements) -> list[jax.Array]:
    """The measures as asked for; each strategy has found its own, in an order of their own."""
    pairs = zip(asked, found.measured, strict=True)
    return [measured[measure] for measures, measured in pairs for measure in measures]


def _stack_like(scan: Scan, measure: Measure, value: Value) -> Stack:
    """A measure stacks as its update does; one number an example, along its own first axis."""
    if isinstance(measure, Defined) and measure.is_sum:
        return Stack(
            value, tuple(mlir.shape(scan.write.results[0])), tuple(mlir.operands(scan.write)[2:])
        )
    shape = mlir.shape(value)
    return Stack(value, (scan.steps, *shape), (scan.index, *[None] * len(shape)))


def _chosen(
    axes: Axes,
    target: Target,
    measures: Sequence[Measure],
    reweights: bool,
    request: Request,
    lifted: Mapping[Value, Value],
) -> Chosen:
    alone = GradientSlice((target.value, None), ())
    sliced = gradient_slice(axes, target.value, lifted) if request.size > 1 else alone
    wide = request.size > 1 and is_widenable(sliced)
    device, examples = request.planning.device, request.examples
    how = Contracting(device.group_patches, wide, upcast=not device.narrow_operands)
    function = slice_function(sliced, request.size, examples.is_mean, how, axes.count)
    # A weight bounds the gradient that it scales only if its norm is that of the same roundings.
    paths = (ghost_paths(sliced) or []) if is_precise(sliced) or not reweights else []
    precise = wide or makes_float32(sliced)
    task = Task(target.value, sliced, function, paths, examples, device, precise)
    return choose(task, measures, request.planning, target.name)


def _at_end(
    axes: Axes,
    block: Block,
    targets: Sequence[Target],
    chosen: Mapping[int, Chosen],
    stacked: Mapping[int, _Stacked],
    request: Request,
    finish: Finish,
) -> tuple[list[Answer], list[Value]]:
    """One splice for all that is left to compute in this block."""
    chosen = with_common_chunks(chosen)
    tails = {
        i: gradient_slice(axes, targets[i].value, {s.result: s.result}) for i, s in stacked.items()
    }
    plain = [v for one in chosen.values() for v in one.task.function.values]
    behind = [v for tail in tails.values() for v, _ in tail.inputs]
    stacks = [v for s in stacked.values() for v in s.measures.values()]
    outputs = [target.value for target in targets]
    values = list(dict.fromkeys([*plain, *behind, *stacks, *outputs, *(request.real or ())]))
    reused = [i for i in chosen if chosen[i].reuse]

    def replacement(*operands: jax.Array) -> list[jax.Array]:
        known = dict(zip(values, operands, strict=True))
        computed = compute_measures(chosen, known)
        computed |= {i: _behind_loop(s, tails[i], known) for i, s in stacked.items()}
        measured = [computed[i].measured for i in range(len(targets))]
        gradients = [gradient for i in reused if (gradient := computed[i].gradient) is not None]
        return [*gradients, *finish(Measurements(request, measured, chosen, known, outputs))]

    made = splice(
        values, replacement, mlir.return_operation(block), closed_over=request.closed_over
    )
    gradients = dict(zip(reused, made, strict=False))
    answers = [
        Answer(output_plan(target.name, chosen[i]), gradients.get(i))
        if i in chosen
        else Answer(stacked_plan(target.name, stacked[i].plan, tails[i]))
        for i, target in enumerate(targets)
    ]
    return answers, made[len(reused) :]


def _behind_loop(
    stacked: _Stacked, tail: GradientSlice, known: Mapping[Value, jax.Array]
) -> Computed:
    given = {key: known[key[0]] for key in tail.inputs}
    measured: Measured = {}
    for measure, stack in stacked.measures.items():
        assert isinstance(measure, Defined)
        measured[measure] = measure.behind(tail, known[stack], stacked.result, given)
    return Computed(measured)
