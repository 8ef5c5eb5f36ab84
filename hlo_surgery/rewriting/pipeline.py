"""The six steps: normalise, owners, gradient slices, plan, splice, verified module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.errors import Reason, Refusal, as_contribution, as_loss
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.loops.hoist_accumulations import hoist_accumulations
from hlo_surgery.passes.loops.hoist_stacks import hoist_stacks
from hlo_surgery.passes.measures.measures import MeanOf, PerExampleGradients
from hlo_surgery.passes.measures.real_examples import flags_and_count, nan_unless_flags
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.classes import Owners
from hlo_surgery.passes.owners.verdicts import mixing_reason, undivided_reason
from hlo_surgery.passes.rewriting.measurements import Measurements
from hlo_surgery.passes.rewriting.replacement import Answer, Asking, Target, block_statistics
from hlo_surgery.passes.strategies.reweight_examples import has_offset
from hlo_surgery.passes.terms.axes import (
    Axes,
    Labelled,
    Local,
    Mixed,
    Split,
)
from hlo_surgery.passes.terms.gradient_slices import Lifted
from hlo_surgery.passes.terms.translation import translated
from hlo_surgery.planning.choice import choose
from hlo_surgery.planning.options import PlanningOptions, check_keywords
from hlo_surgery.planning.output_plan import output_plan
from hlo_surgery.planning.plan import OutputPlan, Plan
from hlo_surgery.requests.request import Batch, Request, labels_of, make_request
from hlo_surgery.statistics.derived import Derived, Statistic, measures_of, results_of
from hlo_surgery.statistics.elementwise import second_moment
from hlo_surgery.statistics.factorable import check_each_element

Hoist = Callable[[Axes, mlir.Block, Sequence[Value]], bool]
IN_PARTS = "this gradient has rows of examples, and not each example's in its place"
IN_PARTS_HELP = "return rows in the order of the batch, and permute or choose them outside"
PADDING_HELP = 'make the loss the sum over the real examples, and pass loss_reduction="sum"'
SHARED_BY_REAL = (
    "bounds each example's influence, but the real examples share a term by their number"
)
OFFSET_HELP = "leave terms without examples, such as decay, to the optimizer"
PRIVATE_HELP = (
    "make the loss a mean or sum of per-example losses that rest on nothing but the example"
)


def rewrite_module(
    module: Source,
    *,
    batch: Batch,
    statistics: Statistic | Mapping[str, Statistic],
    gradients: Sequence[str | int] | None = None,
    loss: str | int | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    is_real: str | int | None = None,
    **planning: Unpack[PlanningOptions],
) -> Module:
    """A module that returns, after what the given one returns, each statistic of each gradient.

    `module`: a Module, MLIR text or bytes. `batch`: example axis by argument name or position, or a
    list of those with axis 0. `gradients`: which outputs they are, by name or position, where a
    tree's name means all that is in it; by default those that form, by their names, a tree like a
    tree of arguments. `loss`: which output it is, where `per_example_losses` needs it; by default
    the only real number, beside gradients, that the examples reach. `is_real`: the argument, [B],
    that says which examples are no padding, where some are; see README. `planning`: `strategy`,
    `memory_budget`, `target`, `reuse_gradient`, `shards`; see `PlanningChoices`. Raises Refusal
    where a statistic is not defined or not proved, ValueError or TypeError for wrong use.
    """
    check_keywords(rewrite_module, planning)
    original = load(module)
    asked = (loss_reduction, on_mixing, planning, loss, is_real)
    request = make_request(original, batch, statistics, gradients, *asked)
    made, closed_over = rewritten(original, request)
    if closed_over:
        raise TypeError(
            "a statistic closes over traced values, which a module by itself cannot; use "
            "hs.rewrite for that"
        )
    return made


def rewritten(original: Module, request: Request) -> tuple[Module, list[Any]]:
    """What was requested, and the traced values that statistics close over: the last arguments of
    the module.
    """
    code = mlir.clone(original.code)
    plan = _rewrite(code, request, [port.name for port in original.outputs])
    return Module(code, plan, request.planning.platform), [
        tracer for tracer, _ in request.closed_over.values()
    ]


def explain_module(
    module: Source,
    *,
    batch: Batch,
    statistics: Statistic | Mapping[str, Statistic] | None = None,
    gradients: Sequence[str | int] | None = None,
    loss: str | int | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    is_real: str | int | None = None,
    **planning: Unpack[PlanningOptions],
) -> Plan:
    """The plan of `rewrite_module`, which prints."""
    asked = second_moment() if statistics is None else statistics
    plan = rewrite_module(
        module,
        batch=batch,
        statistics=asked,
        gradients=gradients,
        loss=loss,
        loss_reduction=loss_reduction,
        on_mixing=on_mixing,
        is_real=is_real,
        **planning,
    ).plan
    assert plan is not None
    return plan


def _rewrite(code: mlir.Module, request: Request, names: Sequence[str]) -> Plan:
    """The six steps, on the module in place."""
    normalize(code)
    main = mlir.main_function(code)
    block = mlir.body(main)
    owners, axes = _analysed(main, code, request)
    _refuse_mixed(owners, axes, block, request, names)
    for hoist in _hoists(request):
        outputs = mlir.operands(mlir.return_operation(block))
        if hoist(axes, block, [outputs[number] for number in request.gradients]):
            _, axes = _analysed(main, code, request)
    _forget_unused(axes, block, request)
    _refuse_unprotected(axes, request)
    if request.is_real is not None:
        outputs = mlir.operands(mlir.return_operation(block))
        flag = partial(flags_and_count, _widest([outputs[number] for number in request.gradients]))
        flags, axes.count = splice(
            [block.arguments[request.is_real]], flag, mlir.operations(block)[0]
        )
        request = replace(request, real=(flags, axes.count))
    end = mlir.return_operation(block)
    numbers = [*request.gradients, *request.losses]
    targets = [Target(end, number, names[number]) for number in numbers]
    statistics = request.statistics.values()
    measures = list(dict.fromkeys(m for s in statistics for m in measures_of(s)))
    for measure in measures:
        if isinstance(measure, MeanOf) and measure.is_given:
            check_each_element(measure.phi)
    asked = [
        *([measures] * len(request.gradients)),
        *([[PerExampleGradients()]] * len(request.losses)),
    ]
    asking = Asking(
        request.examples,
        request.planning.device,
        partial(choose, options=request.planning),
        _reweights(request),
        len(request.gradients),
        request.closed_over,
    )
    finish = partial(_results, request)
    answers, made = block_statistics(axes, block, targets, asked, asking, finish)
    _return(main, answers, made, request, names)
    sharding_rules.strip(code)
    mlir.run_passes(code, "cse", "func.func(trivial-dce)")
    data = tuple(dict.fromkeys(axes.data.values()))
    plans = tuple(
        _by_statistic(output_plan(names[number], answer), request)
        for number, answer in zip(request.gradients, answers, strict=False)
    )
    loss = next((names[number] for number in request.losses), "")
    others = tuple(name for number, name in enumerate(names) if number not in request.gradients)
    return Plan(request.size, request.loss_reduction, plans, data, loss, others)


def _forget_unused(axes: Axes, block: mlir.Block, request: Request) -> None:
    """Constants that no gradient, nor a loss that was asked for, rests on concern nobody."""
    outputs = mlir.operands(mlir.return_operation(block))
    behind = ancestors([outputs[number] for number in [*request.gradients, *request.losses]])
    axes.data = {value: reason for value, reason in axes.data.items() if value in behind}


def _widest(gradients: Sequence[Value]) -> jnp.dtype:
    """The real dtype in which numbers lose nothing beside these gradients: float32 at least."""
    return jnp.finfo(jnp.result_type(jnp.float32, *map(dtype_of, gradients))).dtype


def _results(request: Request, found: Measurements) -> list[jax.Array]:
    """The arrays of all statistics, in order."""
    _refuse_shared_by_real(request, found)
    arrays = [
        x
        for name, s in request.statistics.items()
        for x in results_of(s, found, request.groups[name])
    ]
    return arrays if request.real is None else [nan_unless_flags(x, found.count) for x in arrays]


def _refuse_shared_by_real(request: Request, found: Measurements) -> None:
    """What all share is divided by the number of the real: each gradient would rest on others."""
    private = [n for n, s in request.statistics.items() if isinstance(s, Derived) and s.private]
    if not private or request.real is None or request.size == 1:
        return
    for i in range(len(request.gradients)):
        sliced = found.chosen[i].task.sliced
        lifted = any(isinstance(axis, Lifted) for _, axis in sliced.inputs)
        if lifted or has_offset(sliced):
            raise Refusal(
                Reason(f"{private[0]} {SHARED_BY_REAL}", "is_real", "request", OFFSET_HELP)
            )


def _by_statistic(plan: OutputPlan, request: Request) -> OutputPlan:
    """The plan with the strategies of each statistic in place of those of its measures."""
    strategies: dict[str, str] = {}
    for name, statistic in request.statistics.items():
        taken = [plan.strategies[measure] for measure in measures_of(statistic)]
        reweights = ["reweight"] if isinstance(statistic, Derived) and statistic.reweights else []
        strategies[name] = " + ".join(dict.fromkeys([*taken, *reweights])) or "lift"
    return replace(plan, strategies=strategies)


def _refuse_unprotected(axes: Axes, request: Request) -> None:
    """A private statistic bounds one example's effect, so no constant may rest on others."""
    private = [n for n, s in request.statistics.items() if isinstance(s, Derived) and s.private]
    if private and request.is_real is not None and request.loss_reduction == "mean":
        why = (
            f"{private[0]} bounds each example's influence, but a mean over the real examples "
            "rests on their number"
        )
        raise Refusal(Reason(why, "is_real", "request", PADDING_HELP), private[0])
    if private and axes.data and request.size > 1:
        reason = next(iter(axes.data.values()))
        why = (
            f"{private[0]} bounds each example's influence, but here all examples meet in a "
            f"constant: {reason.why}"
        )
        raise Refusal(Reason(why, reason.op, reason.where, PRIVATE_HELP), private[0])


def _analysed(main: mlir.func.FuncOp, code: mlir.Module, request: Request) -> tuple[Owners, Axes]:
    """The class of every value of the module as it is now, and the same for emission."""
    sharding_rules.populate(code)
    contribution = request.on_mixing == "contribution"
    batch = dict(request.batch)
    owners = find_owners(main, batch, request.size, request.gradients, contribution)
    return owners, translated(owners)


def _hoists(request: Request) -> list[Hoist]:
    """What moves contractions out of loops; out of scans only where weights behind need it."""
    if request.size == 1:
        return []
    return [hoist_accumulations, hoist_stacks] if _reweights(request) else [hoist_accumulations]


def _reweights(request: Request) -> bool:
    return any(isinstance(s, Derived) and s.reweights for s in request.statistics.values())


def _return(
    main: mlir.func.FuncOp,
    answers: Sequence[Answer],
    made: Sequence[Value],
    request: Request,
    names: Sequence[str],
) -> None:
    """Return the statistics after the module's own outputs."""
    outputs = mlir.operands(mlir.return_operation(mlir.body(main)))
    for number, answer in zip([*request.gradients, *request.losses], answers, strict=True):
        if number not in request.losses:
            outputs[number] = outputs[number] if answer.gradient is None else answer.gradient
    labels = [
        label
        for name, s in request.statistics.items()
        for label in labels_of(name, s, request, names)
    ]
    mlir.set_results(main, [*outputs, *made], [{"jax.result_info": label} for label in labels])


def _refuse_mixed(
    owners: Owners, axes: Axes, block: mlir.Block, request: Request, names: Sequence[str]
) -> None:
    """One refusal for all outputs that mix for the first one's reason."""
    if request.size == 1:
        return
    outputs = mlir.operands(mlir.return_operation(block))
    reasons = {n: undivided_reason(owners, block, outputs[n]) for n in request.gradients}
    losses = {n: mixing_reason(owners, outputs[n]) for n in request.losses}
    reasons |= {n: reason and as_loss(reason) for n, reason in losses.items()}
    reasons = {n: reason or _unworded(axes, outputs[n]) for n, reason in reasons.items()}
    first = next((reason for reason in reasons.values() if reason), None)
    if first is not None:
        concerned = [names[number] for number, reason in reasons.items() if reason]
        more = f" (and {len(concerned) - 1} more)" if len(concerned) > 1 else ""
        raise Refusal(
            as_contribution(first) if owners.contributions else first, concerned[0] + more
        )


def _unworded(axes: Axes, output: Value) -> Reason | None:
    """Why an output's examples, each known, lie so that nothing is emitted for them."""
    match axes.of(output):
        case Mixed(reason):
            return reason
        case Split() | Local() | Labelled():
            op = mlir.defining_operation(output)
            where = ("func.return", "module") if op is None else (op.name, source_line(op))
            return Reason(IN_PARTS, *where, IN_PARTS_HELP)
        case _:
            return None
