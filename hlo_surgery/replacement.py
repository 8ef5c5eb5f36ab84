"""Replacement: given the gradients of a block, values for every statistic asked for, computed at the block's end.

What a loop stacks slice by slice is looked at inside the loop; what else loops and branches make is lifted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from hlo_surgery import mlir
from hlo_surgery.compute import Wanted, compute_statistics, precise_phi, reuses_gradient, statistic_dtype
from hlo_surgery.mlir import Block, Operation, Value
from hlo_surgery.passes.counters import counter_values
from hlo_surgery.passes.element_types import dtype_of
from hlo_surgery.passes.gradient_slices import GradientSlice, gradient_slice
from hlo_surgery.passes.lattice import Axes
from hlo_surgery.passes.lift_values import lift_control_flow
from hlo_surgery.passes.scanned_gradients import Scan, replace_update, scanned_gradient, stack_values
from hlo_surgery.passes.slice_functions import slice_function
from hlo_surgery.passes.splice import splice
from hlo_surgery.passes.square_operands import moved_statistic
from hlo_surgery.planning import OutputPlan, choose_strategies, lifted_bytes, site_plan
from hlo_surgery.request import Request
from hlo_surgery.statistics import MeanOf


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
    """The plan of one gradient, its statistics by name, and the gradient where it came from the same tensor."""

    plan: OutputPlan
    statistics: Mapping[str, Value]
    gradient: Value | None = None


def block_statistics(axes: Axes, block: Block, targets: Sequence[Target], request: Request) -> list[Answer]:
    """Compute every statistic of every target at the end of their block."""
    plain = [i for i, target in enumerate(targets) if _scan(axes, target, request) is None]
    lifted = lift_control_flow(axes, block, [targets[i].value for i in plain]) if request.size > 1 else {}
    scans = {i: scan for i, t in enumerate(targets) if (scan := _scan(axes, t, request)) is not None}
    stacked: dict[int, _Stacked] = {}
    while remaining := {i: scan for i, scan in scans.items() if i not in stacked}:
        loop = next(iter(remaining.values())).loop
        together = {i: scan for i, scan in remaining.items() if mlir.is_same(scan.loop, loop)}
        stacked |= _inside_loop(axes, loop, together, request, lifted)
    wanted = {i: _wanted(axes, targets[i], request, lifted) for i in plain}
    return _at_end(axes, block, targets, wanted, stacked, request)


@dataclass(frozen=True)
class _Stacked:
    """What a loop stacked for a target: the gradient itself, its statistics by name, and the plan in the loop."""

    result: Value
    statistics: Mapping[str, Value]
    plan: OutputPlan


def _scan(axes: Axes, target: Target, request: Request) -> Scan | None:
    """The scan that stacks a target, if all statistics asked for can be stacked with it."""
    statistics = request.statistics.values()
    if request.size == 1 or not all(isinstance(s, MeanOf) for s in statistics):
        return None
    scan = scanned_gradient(axes, target.value)
    factorable = all(isinstance(s, MeanOf) and s.factorable for s in statistics)
    return scan if scan is not None and (scan.moves_only or factorable) else None


def _inside_loop(
    axes: Axes, loop: Operation, scans: Mapping[int, Scan], request: Request, lifted: dict[Value, Value]
) -> dict[int, _Stacked]:
    """Compute the statistics of the updates in the loop's body, and stack them in the same loop."""
    body = loop.regions[1].blocks[0]
    trips = len(next(iter((counter_values(loop) or {}).values())))
    updates = [Target(scan.write, 1, "") for scan in scans.values()]
    answers = block_statistics(axes, body, updates, request)
    for scan, answer in zip(scans.values(), answers, strict=True):
        if answer.gradient is not None:
            replace_update(scan.write, answer.gradient)
    pairs = [(scan, value) for scan, a in zip(scans.values(), answers, strict=True) for value in a.statistics.values()]
    shapes = [(mlir.shape(scan.write.results[0]), dtype_of(value)) for scan, value in pairs]
    zeros = splice([], lambda: [jnp.zeros(shape, dtype) for shape, dtype in shapes], loop)
    renewed = stack_values(axes, loop, [scan.write for scan, _ in pairs], [value for _, value in pairs], zeros, lifted)
    stacks = iter(mlir.results(renewed)[-len(pairs) :])
    return {
        i: _Stacked(renewed.results[scan.number], {name: next(stacks) for name in a.statistics}, _times(a.plan, trips))
        for (i, scan), a in zip(scans.items(), answers, strict=True)
    }


def _times(plan: OutputPlan, trips: int) -> OutputPlan:
    """The plan of one slice as the plan of the stack."""
    sites = tuple(replace(s, flops=s.flops * trips, bytes=s.bytes * trips, trips=s.trips * trips) for s in plan.sites)
    return replace(plan, sites=sites)


def _wanted(axes: Axes, target: Target, request: Request, lifted: Mapping[Value, Value]) -> Wanted:
    alone = GradientSlice((target.value, None), ())
    sliced = gradient_slice(axes, target.value, lifted) if request.size > 1 else alone
    function = slice_function(sliced, request.size, request.loss_reduction if request.size > 1 else "mean")
    strategies = choose_strategies(sliced, function, request.statistics, request.size, request.strategy)
    return Wanted(sliced, function, strategies)


def _at_end(
    axes: Axes,
    block: Block,
    targets: Sequence[Target],
    wanted: Mapping[int, Wanted],
    stacked: Mapping[int, _Stacked],
    request: Request,
) -> list[Answer]:
    """One splice for all that is left to compute in this block."""
    tails = {i: gradient_slice(axes, targets[i].value, {s.result: s.result}) for i, s in stacked.items()}
    plain = [v for w in wanted.values() for v in w.function.values]
    behind = [v for tail in tails.values() for v, _ in tail.inputs]
    stacks = [v for s in stacked.values() for v in s.statistics.values()]
    values = list(dict.fromkeys([*plain, *behind, *stacks]))

    def replacement(*operands: jax.Array) -> list[jax.Array]:
        known = dict(zip(values, operands, strict=True))
        found: list[jax.Array] = []
        for i in range(len(targets)):
            if i in wanted:
                gradient, statistics = compute_statistics(wanted[i], known, request)
                found += [] if gradient is None else [gradient]
            else:
                statistics = _behind_loop(stacked[i], tails[i], known, request)
            found += [statistics[name] for name in request.statistics]
        return found

    made = iter(splice(values, replacement, mlir.return_operation(block)))
    answers: list[Answer] = []
    for i, target in enumerate(targets):
        gradient = next(made) if i in wanted and reuses_gradient(wanted[i]) else None
        statistics = {name: next(made) for name in request.statistics}
        if i in wanted:
            answers.append(Answer(_plan(wanted[i], target, request), statistics, gradient))
        else:
            tail = tuple(step.op.name for step in tails[i].tail)
            plan = replace(stacked[i].plan, name=target.name, tail=(*stacked[i].plan.tail, *tail))
            answers.append(Answer(plan, statistics))
    return answers


def _behind_loop(
    stacked: _Stacked, tail: GradientSlice, known: Mapping[Value, jax.Array], request: Request
) -> dict[str, jax.Array]:
    given = {key: known[key[0]] for key in tail.inputs}
    dtype = statistic_dtype(stacked.result)
    found: dict[str, jax.Array] = {}
    for name, statistic in request.statistics.items():
        assert isinstance(statistic, MeanOf)
        inside = {stacked.result: known[stacked.statistics[name]]}
        found[name] = moved_statistic(tail, inside, given, precise_phi(statistic, dtype), dtype)
    return found


def _plan(wanted: Wanted, target: Target, request: Request) -> OutputPlan:
    sliced = wanted.sliced
    reached = sliced.inputs and (sliced.steps or sliced.output[1] is not None)
    note = "" if reached or request.size == 1 else "no example reaches this gradient"
    sites, tail = tuple(site_plan(s.op) for s in sliced.sites), tuple(s.op.name for s in sliced.tail)
    return OutputPlan(target.name, sites, tail, wanted.strategies, lifted_bytes(sliced, request.size), note)
