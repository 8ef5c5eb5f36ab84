"""The six steps in order: normalise, example axes, gradient slices, plan, splice, verified module."""

from collections.abc import Mapping, Sequence

from hlo_surgery import mlir
from hlo_surgery.errors import Reason, Refusal
from hlo_surgery.mlir import Value
from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes import sharding_rules
from hlo_surgery.passes.example_axes import find_example_axes
from hlo_surgery.passes.gradient_slices import GradientSlice, gradient_slice
from hlo_surgery.passes.lattice import Axes, Mixed, PerExample, Shared, Summed
from hlo_surgery.passes.lift_values import lift_control_flow
from hlo_surgery.passes.normalize import normalize
from hlo_surgery.passes.slice_functions import slice_function
from hlo_surgery.planning import OutputPlan, Plan, choose_strategies, lifted_bytes, site_plan
from hlo_surgery.replacement import Wanted, append_statistics
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
    names = [port.name for port in original.outputs]
    wanted, plan = _plan(code, request, names)
    append_statistics(code, wanted, request, names)
    mlir.run_passes(code, "cse")
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
    """The plan of `rewrite_module`, which prints, without the rewriting."""
    original = load(module)
    asked = second_moment() if statistics is None else statistics
    request = make_request(original, batch, asked, gradients, loss_reduction, on_mixing, strategy)
    return _plan(mlir.clone(original.code), request, [port.name for port in original.outputs])[1]


def _plan(code: mlir.Module, request: Request, names: Sequence[str]) -> tuple[list[Wanted], Plan]:
    """The first four steps. Normalises the module in place."""
    normalize(code)
    main = mlir.main_function(code)
    outputs = mlir.operands(mlir.return_operation(mlir.body(main)))
    sharding_rules.populate(code)
    axes = find_example_axes(main, dict(request.batch), request.size, request.on_mixing == "contribution")
    _refuse_mixed(axes, outputs, request, names)
    lifted = lift_control_flow(axes, mlir.body(main), [outputs[number] for number in request.gradients])
    outputs = mlir.operands(mlir.return_operation(mlir.body(main)))
    wanted = [_wanted(axes, outputs[number], number, request, lifted) for number in request.gradients]
    sharding_rules.strip(code)
    planned = tuple(_output_plan(w, names[w.number], request) for w in wanted)
    return wanted, Plan(request.size, request.loss_reduction, planned, tuple(dict.fromkeys(axes.data.values())))


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
            op = mlir.defining_operation(output)
            where = "an argument" if op is None else op.name
            return Reason("this gradient holds each example in a row of its own", where, "module")


def _wanted(axes: Axes, output: Value, number: int, request: Request, lifted: Mapping[Value, Value]) -> Wanted:
    alone = GradientSlice((output, None), ())
    sliced = gradient_slice(axes, output, lifted) if request.size > 1 else alone
    function = slice_function(sliced, request.size, request.loss_reduction if request.size > 1 else "mean")
    strategies = choose_strategies(sliced, function, request.statistics, request.size, request.strategy)
    return Wanted(number, sliced, function, strategies)


def _output_plan(wanted: Wanted, name: str, request: Request) -> OutputPlan:
    sliced = wanted.sliced
    note = "" if sliced.steps or request.size == 1 else "no example reaches this gradient"
    sites, tail = tuple(site_plan(s.op) for s in sliced.sites), tuple(s.op.name for s in sliced.tail)
    return OutputPlan(name, sites, tail, wanted.strategies, lifted_bytes(sliced, request.size), note)
