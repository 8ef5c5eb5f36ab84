"""Reports: how plans, verdicts and costs are shown, as text; the CLI and the tests share it."""

from collections.abc import Sequence

from hlo_surgery.planning import OutputPlan, Plan, SitePlan
from hlo_surgery.verification import Verdict
from hlo_surgery.verification_tolerances import Comparison


def plan_text(plan: Plan) -> str:
    """The plan, one output a paragraph."""
    head = f"{plan.batch_size} examples, loss reduced by {plan.loss_reduction}"
    data = [f"  taken as constant: {r.op} at {r.where}: {r.why}" for r in plan.data]
    return "\n".join([head, *data, *map(_output_text, plan.outputs)])


def _output_text(output: OutputPlan) -> str:
    strategies = ", ".join(f"{name}: {strategy}" for name, strategy in output.strategies.items())
    lines = [f"{output.name}  [{strategies}]"]
    lines += [f"  {output.note}"] if output.note else []
    lines += [f"  site {site_text(s)}: {quantity(s.flops)}FLOP, {quantity(s.bytes)}B" for s in output.sites]
    lines += [f"  tail {' '.join(map(bare, output.tail))}"] if output.tail else []
    return "\n".join([*lines, f"  all examples' gradients at once: {quantity(output.lifted_bytes)}B"])


def site_text(site: SitePlan) -> str:
    """The op, its source line, and how often a loop runs it: 'stablehlo.dot_general at model.py:9, 12 times'."""
    return f"{site.op} at {site.where}" + (f", {site.trips} times" if site.trips > 1 else "")


def bare(op: str) -> str:
    """The name of an op without its dialect: 'stablehlo.dot_general' -> 'dot_general'."""
    return op.removeprefix("stablehlo.")


def verdict_text(verdict: Verdict) -> str:
    """The verdict and its reason, then what failed and the worst of what passed, one comparison a line."""
    head = f"{verdict.verdict}: {verdict.why}"
    return "\n".join([head, *(f"  {_comparison_text(c)}" for c in notable(verdict.comparisons))])


def notable(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Of each kind all that failed, or else the one nearest to its tolerance."""
    chosen: list[Comparison] = []
    for kind in dict.fromkeys(c.kind for c in comparisons):
        alike = [c for c in comparisons if c.kind == kind]
        chosen += [c for c in alike if not c.passes] or [max(alike, key=lambda c: c.share)]
    return chosen


def _comparison_text(comparison: Comparison) -> str:
    result = "within" if comparison.passes else "beyond"
    return (
        f"{comparison.kind} {comparison.name}: off by {comparison.error:.2g} of its largest entry, "
        f"{result} the tolerance ({comparison.share:.2g} of it)"
    )


def quantity(number: float) -> str:
    """A number with a unit prefix: 12345 -> '12.3 k'."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"
