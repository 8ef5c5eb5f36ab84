"""The six steps in order: normalise, example axes, gradient slices, plan, splice, verified module."""

from collections.abc import Mapping, Sequence

from hlo_surgery import mlir
from hlo_surgery.errors import Reason, Refusal
from hlo_surgery.mlir import Value
from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes import sharding_rules
from hlo_surgery.passes.example_axes import find_example_axes
from hlo_surgery.passes.hoist_accumulations import hoist_accumulations
from hlo_surgery.passes.lattice import Axes, Local, Mixed, PerExample, Shared, Split, Summed
from hlo_surgery.passes.normalize import normalize
from hlo_surgery.planning import Plan
from hlo_surgery.replacement import Answer, Target, block_statistics
from hlo_surgery.request import Batch, Request, make_request
from hlo_surgery.statistics import Statistic, second_moment


def rewrite_module(
    module: Source,
    *,
    batch: Batch,
    statistics: Statistic | Mapping[str, Statistic],
    gradients: Sequence[str | int] | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    strategy: str = "auto",
) -> Module:
    """A module that returns, after what the given one returns, each statistic of each gradient.

    `module`: a Module, MLIR text or bytes. `batch`: example axis by argument name or position, or a list of those
    with axis 0. `gradients`: which outputs they are; by default those like a parameter in shape and dtype.
    Raises Refusal where a statistic is not defined or not proved, ValueError or TypeError for wrong use.
    """
    original = load(module)
    request = make_request(original, batch, statistics, gradients, loss_reduction, on_mixing, strategy)
    code = mlir.clone(original.code)
    plan = _rewrite(code, request, [port.name for port in original.outputs])
    return Module(code, plan)


def explain_module(
    module: Source,
    *,
    batch: Batch,
    statistics: Statistic | Mapping[str, Statistic] | None = None,
    gradients: Sequence[str | int] | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    strategy: str = "auto",
) -> Plan:
    """The plan of `rewrite_module`, which prints."""
    asked = second_moment() if statistics is None else statistics
    plan = rewrite_module(
        module,
        batch=batch,
        statistics=asked,
        gradients=gradients,
        loss_reduction=loss_reduction,
        on_mixing=on_mixing,
        strategy=strategy,
    ).plan
    assert plan is not None
    return plan


def _rewrite(code: mlir.Module, request: Request, names: Sequence[str]) -> Plan:
    """The six steps, on the module in place."""
    normalize(code)
    main = mlir.main_function(code)
    block = mlir.body(main)
    sharding_rules.populate(code)
    axes = find_example_axes(main, dict(request.batch), request.size, request.on_mixing == "contribution")
    _refuse_mixed(axes, mlir.operands(mlir.return_operation(block)), request, names)
    if _hoist(axes, block, request):
        sharding_rules.populate(code)
        axes = find_example_axes(main, dict(request.batch), request.size, request.on_mixing == "contribution")
    end = mlir.return_operation(block)
    targets = [Target(end, number, names[number]) for number in request.gradients]
    answers = block_statistics(axes, block, targets, request)
    _return(main, answers, request, names)
    sharding_rules.strip(code)
    mlir.run_passes(code, "cse")
    data = tuple(dict.fromkeys(axes.data.values()))
    return Plan(request.size, request.loss_reduction, tuple(a.plan for a in answers), data)


def _hoist(axes: Axes, block: mlir.Block, request: Request) -> bool:
    outputs = mlir.operands(mlir.return_operation(block))
    return request.size > 1 and hoist_accumulations(axes, block, [outputs[number] for number in request.gradients])


def _return(main: mlir.func.FuncOp, answers: Sequence[Answer], request: Request, names: Sequence[str]) -> None:
    """Return the statistics of every gradient after the module's own outputs."""
    outputs = mlir.operands(mlir.return_operation(mlir.body(main)))
    for number, answer in zip(request.gradients, answers, strict=True):
        outputs[number] = outputs[number] if answer.gradient is None else answer.gradient
    made = [answer.statistics[name] for name in request.statistics for answer in answers]
    labels = [f"{name}/{names[number]}" for name in request.statistics for number in request.gradients]
    mlir.set_results(main, [*outputs, *made], [{"jax.result_info": label} for label in labels])


def _refuse_mixed(axes: Axes, outputs: Sequence[Value], request: Request, names: Sequence[str]) -> None:
    """One refusal for all outputs that mix for the first one's reason."""
    if request.size == 1:
        return
    reasons = {number: _mixing(axes, outputs[number]) for number in request.gradients}
    first = next((reason for reason in reasons.values() if reason), None)
    if first is not None:
        concerned = [names[number] for number, reason in reasons.items() if reason]
        more = f" (and {len(concerned) - 1} more)" if len(concerned) > 1 else ""
        raise Refusal(first, concerned[0] + more)


def _mixing(axes: Axes, output: Value) -> Reason | None:
    match axes.of(output):
        case Mixed(reason):
            return reason
        case Shared(data) | Summed(_, data):
            return None if axes.contribution else data
        case PerExample():
            return None
        case Split() | Local():
            return Reason("this gradient holds the examples in parts", "func.return", "module")
