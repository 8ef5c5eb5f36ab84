"""Reports: how plans and costs are shown, as text; the CLI and the tests share it."""

from hlo_surgery.planning import OutputPlan, Plan


def plan_text(plan: Plan) -> str:
    """The plan, one output a paragraph."""
    head = f"{plan.batch_size} examples, loss reduced by {plan.loss_reduction}"
    data = [f"  taken as constant: {r.op} at {r.where}: {r.why}" for r in plan.data]
    return "\n".join([head, *data, *map(_output_text, plan.outputs)])


def _output_text(output: OutputPlan) -> str:
    strategies = ", ".join(f"{name}: {strategy}" for name, strategy in output.strategies.items())
    lines = [f"{output.name}  [{strategies}]"]
    lines += [f"  {output.note}"] if output.note else []
    lines += [f"  site {s.op} at {s.where}: {quantity(s.flops)}FLOP, {quantity(s.bytes)}B" for s in output.sites]
    lines += [f"  tail {' '.join(op.removeprefix('stablehlo.') for op in output.tail)}"] if output.tail else []
    return "\n".join([*lines, f"  all examples' gradients at once: {quantity(output.lifted_bytes)}B"])


def quantity(number: float) -> str:
    """A number with a unit prefix: 12345 -> '12.3 k'."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"
