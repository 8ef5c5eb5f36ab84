"""The six steps: normalise, axes, gradient slices, plan, splice, verified module.

Output plans: what was chosen for one gradient, as values that print.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, Unpack

from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.axes.verdicts import constant_terms, holds_constant
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.ir.mlir import Values
from hlo_surgery.passes.measures.measures import MEAN, MeanOf, Measure, PerExampleGradients
from hlo_surgery.passes.normalise.out_of_scope import mesh_size
from hlo_surgery.passes.rewriting.analysed import Analysed, analyse, finished, real_examples
from hlo_surgery.passes.rewriting.by_microbatch import statistics_of_outputs
from hlo_surgery.passes.rewriting.replacement import Answer, Asking
from hlo_surgery.passes.strategies.choice import WAYS, WORDS
from hlo_surgery.passes.strategies.einsums.fused import FUSED
from hlo_surgery.passes.strategies.gradient_costs import (
    PLATFORMS,
    Predicted,
    plain_seconds,
)
from hlo_surgery.passes.terms.ragged import crossed
from hlo_surgery.plan import OutputPlan, Plan
from hlo_surgery.requests.declaring import CallAxes
from hlo_surgery.requests.gradient_outputs import UnclearGradients
from hlo_surgery.requests.options import PlanningOptions
from hlo_surgery.requests.request import (
    Batch,
    LossReduction,
    OnMixing,
    Request,
    labels_of,
    make_request,
)
from hlo_surgery.rewriting.cache import cached
from hlo_surgery.rewriting.diagnostics import (
    roles_of,
    unmarked,
    unnamed_with_types,
    warn_of_constants,
    warn_of_unnamed,
)
from hlo_surgery.rewriting.predicted import program_seconds
from hlo_surgery.rewriting.results import results, shared_by_real, staged
from hlo_surgery.statistics.derived import Statistics
from hlo_surgery.statistics.elementwise import second_moment
from hlo_surgery.statistics.factorable import check_each_element


def output_plan(name: str, answer: Answer, is_reweighted: bool) -> OutputPlan:
    """The plan of a gradient that goes by this name; of a loop's slices for all of them."""
    chosen, trips = answer.chosen, answer.trips
    size, predicted = chosen.task.examples.size, dict(chosen.predicted)
    if is_reweighted:
        counts = chosen.task.counts
        predicted["reweight"] = Predicted(plain_seconds(counts, chosen.task.device), counts.read)
    return OutputPlan(
        name,
        tuple(
            replace(site, flops=site.flops * trips, bytes=site.bytes * trips, trips=trips)
            for site in answer.sites
        ),
        answer.tail,
        {measure: strategy.name for measure, strategy in chosen.strategies.items()},
        size * answer.bytes * trips,
        chosen.schedule.chunk,
        {n: replace(p, seconds=p.seconds * trips) for n, p in predicted.items()},
        "" if answer.is_reached or size == 1 else "no example reaches this gradient",
    )


PADDING_HELP = 'make the loss the sum over the real examples, and pass loss_reduction="sum"'
PRIVATE_HELP = (
    "make the loss a mean or sum of per-example losses that rest on nothing but the example: "
    "divide by the number of examples, and not by what the batch holds, such as sum(mask). That is "
    "jnp.mean(mask * losses) of a mask of examples, and of one of positions the mean of each "
    "example's own masked mean, jnp.mean((mask * losses).sum(1) / mask.sum(1)); of a loss of "
    'PyTorch such as cross_entropy take reduction="none" and the mean of that. What hs.constant '
    "marks must rest on nothing else either: normalise by numbers fixed before the batch is drawn. "
    "What all examples decide together, such as whether labels are of two kinds, decide before the "
    "call. Where the function clips or guards its gradients itself, do that with what it returns"
)


def check_planning(function: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for keywords that neither the function nor planning has, and says which
    there are; ValueError for a strategy that is none.
    """
    planning = list(PlanningOptions.__annotations__)
    unknown = [name for name in keywords if name not in planning]
    if unknown:
        own = [n for n, p in signature(function).parameters.items() if p.kind != p.VAR_KEYWORD]
        raise TypeError(
            f"{function.__name__} has no keyword {unknown[0]!r}; there are "
            f"{', '.join(dict.fromkeys([*own, *planning]))}"
        )
    strategy = keywords.get("strategy", "auto")
    if strategy not in WAYS:
        raise ValueError(f"strategy is {strategy!r}; it is one of {', '.join(map(repr, WAYS))}")


def rewrite_module(
    module: Source,
    *,
    batch: Batch,
    statistics: Statistics,
    gradients: Sequence[str | int] | None = None,
    loss: str | int | None = None,
    loss_reduction: LossReduction = "mean",
    on_mixing: OnMixing = "refuse",
    is_real: str | int | None = None,
    custom_calls: CallAxes | None = None,
    rows_per_example: int = 1,
    segments: Mapping[str | int, str | int] | None = None,
    **planning: Unpack[PlanningOptions],
) -> Module:
    """A module that returns, after what the given one returns, each statistic of each gradient.

    `module`: a Module, MLIR text or bytes. `batch`: example axis by argument name or position, or a
    list of those with axis 0. `gradients`: which outputs they are, by name or position, where a
    tree's name means all that is in it; by default those that form, by their names, a tree like a
    tree of arguments. `loss`: which output it is, where `per_example_losses` needs it; by default
    the only real number, beside gradients, that the examples reach. `is_real`: the argument, [B],
    that says which examples are no padding, where some are, as in `grad`. `custom_calls`: of calls
    that take the examples one by one, by the name of their target or kernel, the axes of their
    operands and of their results, each one int or None for all or a list, as `{"my_kernel": ([0, 0,
    None], 0)}`; that is trusted. `segments`: of arguments whose rows are the examples' by ids, the
    argument with the ids, as `{"nodes": "node_ids"}`. `planning`: `strategy`,
    `memory_budget`, `target`, `reuse_gradient`, `shards`, as in `grad`. Raises Refusal
    where a statistic is not defined or not proved, ValueError or TypeError for wrong use.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> w, x = jnp.ones(3), jnp.eye(4, 3)
    >>> gradient = jax.jit(jax.grad(lambda w, x: jnp.mean((x @ w) ** 2)))
    >>> text = gradient.lower(w, x).as_text(debug_info=True)
    >>> module = hs.modules.rewrite_module(text, batch=["x"], statistics=hs.norms())
    >>> [port.name for port in module.outputs], module.call(w, x)[1].tolist()
    (['result', 'norms'], [2.0, 2.0, 2.0, 0.0])
    """
    check_planning(rewrite_module, planning)
    if planning.get("autotune"):
        raise ValueError(
            "autotune=True measures a function's first call, and a module is called by others; "
            "give a strategy, or use hs.grad or hs.rewrite"
        )
    original = load(module)
    asked = (loss_reduction, on_mixing, planning, loss, is_real, custom_calls, rows_per_example)

    def requested(gradients: Sequence[str | int] | None) -> Request:
        return make_request(original, batch, statistics, gradients, *asked, segments=segments)

    try:
        request = requested(gradients)
    except UnclearGradients as unclear:
        if unclear.guess is not None:
            with contextlib.suppress(ValueError, TypeError):
                _refuse_guess(unclear, original, requested(unclear.guess.outputs))
        raise
    made, closed_over = rewritten(original, request)
    if closed_over:
        raise TypeError(
            "a statistic closes over traced values, which a module by itself cannot; use "
            "hs.rewrite for that"
        )
    return made


def _refuse_guess(unclear: UnclearGradients, original: Module, request: Request) -> None:
    """Raises Refusal where what are likely the gradients is refused: that comes first, and then the
    question whether they are.
    """
    try:
        rewritten(original, request)
    except Refusal as refusal:
        taken = f"; {unclear.said}, was taken for the gradients, as by {unclear.typed}"
        reason = Reason(
            refusal.why, refusal.op, refusal.where, refusal.help + taken, refusal.library
        )
        raise Refusal(reason, refusal.output) from None


def rewritten(
    original: Module, request: Request, names: Sequence[str] = ()
) -> tuple[Module, list[Any]]:
    """What was requested, and the traced values that statistics close over: the last arguments of
    the module. `names`: what the user calls the first arguments, if not as the module does.
    """
    called = names or [f"argument {port.name}" for port in original.arguments]
    warn_of_unnamed(original, request, called)
    asked = [request, request.planning.device]
    code, plan = cached(original.code, asked, lambda code: _rewrite(code, request))
    warn_of_constants(plan)
    plan = replace(plan, unnamed=unnamed_with_types(original, request, names))
    return Module(code, plan, _platform(plan, request)), [
        tracer for tracer, _ in request.closed_over.values()
    ]


def _platform(plan: Plan, request: Request) -> str | None:
    """Kernels are for one platform, also where none is named."""
    kernels = request.planning.device.kernels
    taken = {name for output in plan.outputs for name in output.strategies.values()}
    fused = any(FUSED.name in name.split(" + ") for name in taken)
    return PLATFORMS[kernels] if kernels and fused else request.planning.platform


def explain_module(
    module: Source,
    *,
    statistics: Statistics | None = None,
    **keywords: Any,
) -> Plan:
    """The plan of `rewrite_module`, which prints."""
    asked = second_moment() if statistics is None else statistics
    plan = rewrite_module(module, statistics=asked, **keywords).plan
    assert plan is not None
    return plan


def _rewrite(code: mlir.Module, request: Request) -> Plan:
    """The six steps, on the module in place: 1 and 2 are `analyse`, 3 to 5 are `_computed`, and
    `finished` makes main return the results.
    """
    names = request.outputs
    measures = [m for statistic in request.statistics.values() for m in statistic.measures]
    module = analyse(code, roles_of(request), names, request.takes_sums, measures)
    _refuse_unprotected(module, request)
    if request.is_real is not None:
        request = replace(request, real=real_examples(module, request.is_real))
    if request.ragged is not None and request.size > 1:
        request = replace(request, crossed=crossed(module.axes, module.block))
    unsaid, device = unmarked(module, request), request.planning.device
    # On other devices it was not held against what programs take.
    seconds = program_seconds(module.block, device) if device.name == "cpu" else None
    answers, made = _computed(module, request)
    finished(module, [answer.gradient for answer in answers], made, _labels(request))
    data = tuple(dict.fromkeys(module.axes.data.values()))
    plans = tuple(
        _by_statistic(output_plan(names[number], answer, request.takes_sums), request)
        for number, answer in zip(request.gradients, answers, strict=False)
    )
    loss = next((names[number] for number in request.losses), "")
    others = tuple(name for number, name in enumerate(names) if number not in request.gradients)
    return Plan(
        request.size,
        request.loss_reduction,
        plans,
        data,
        loss,
        others,
        tuple(module.trusted),
        unmarked=unsaid,
        seconds=seconds,
        words=WORDS,
    )


def _computed(module: Analysed, request: Request) -> tuple[list[Answer], Values]:
    """What was chosen for each gradient, and loss, and the values of all statistics. What makes
    these of the measures, `results`, is called back while the new code is traced.
    """
    measures = [_measures(request)] * len(request.gradients)
    losses = [[PerExampleGradients()]] * len(request.losses)
    asking = Asking(
        request.examples,
        request.planning.device,
        request.planning,
        request.takes_sums,
        len(request.gradients),
        request.closed_over,
        _asked_by(request),
        platform=request.planning.platform,
        devices=mesh_size(module.code),
    )
    finish, by_step = partial(results, request), staged(request)
    return statistics_of_outputs(
        module, request.outputs, [*measures, *losses], asking, finish, by_step
    )


def _measures(request: Request) -> list[Measure]:
    """What all statistics are made of, each once. TypeError where a phi is not elementwise."""
    statistics = request.statistics.values()
    told = [MEAN] if request.is_real is not None and any(s.about_mean for s in statistics) else []
    measures = list(dict.fromkeys([*(m for s in statistics for m in s.measures), *told]))
    for measure in measures:
        if isinstance(measure, MeanOf) and measure.is_given:
            check_each_element(measure.phi)
    return measures


def _asked_by(request: Request) -> dict[Measure, list[str]]:
    """The statistics that are made of each measure, by name."""
    pairs = [(m, name) for name, s in request.statistics.items() for m in s.measures]
    return {measure: [name for m, name in pairs if m == measure] for measure, _ in pairs}


def _labels(request: Request) -> list[str]:
    pairs = request.statistics.items()
    return [label for name, s in pairs for label in labels_of(name, s, request)]


def _by_statistic(plan: OutputPlan, request: Request) -> OutputPlan:
    """The plan with the strategies of each statistic in place of those of its measures."""
    strategies: dict[str, str] = {}
    for name, statistic in request.statistics.items():
        taken = [plan.strategies[measure] for measure in statistic.measures]
        taken += ["reweight"] * statistic.reweights + ["loop"] * statistic.wholes
        strategies[name] = " + ".join(dict.fromkeys(taken)) or "lift"
    return replace(plan, strategies=strategies)


def _refuse_unprotected(module: Analysed, request: Request) -> None:
    """A private statistic bounds one example's effect, so no constant may rest on others."""
    private, data = request.private, module.axes.data
    if private and request.is_real is not None and request.loss_reduction == "mean":
        why = (
            f"{private[0]} bounds each example's influence, but a mean over the real examples "
            "rests on their number"
        )
        raise Refusal(Reason(why, "is_real", "request", PADDING_HELP), private[0])
    if private and data and request.size > 1:
        reason = next(iter(data.values()))
        why = (
            f"{private[0]} bounds each example's influence, but here all examples meet in a "
            f"constant: {reason.why}"
        )
        raise Refusal(replace(reason, why=why, help=PRIVATE_HELP), private[0])
    padded = private and request.is_real is not None and request.size > 1
    state = module.axes.state
    if padded and any(holds_constant(state, g, constant_terms(state, g)) for g in module.gradients):
        raise shared_by_real(private[0])
