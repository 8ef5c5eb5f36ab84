"""Page: findings as one HTML file that loads nothing and runs nothing.

Names in a module are whatever its author wrote. All of them are escaped, and the page forbids
itself scripts and loads, so that a browser would refuse what slipped through.

Found: a module rewritten and compiled, and what has become of it.

Style: the colours and measures of the page, light and dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.ir.modules import inline_calls
from hlo_surgery.passes.normalise.normalize import free_invariants
from hlo_surgery.plan import Plan, plan_table
from hlo_surgery.report.drawing import keys
from hlo_surgery.report.findings import Addition, Findings, additions, by_reason
from hlo_surgery.report.program_graph import line_costs, memory_chart, program_graph
from hlo_surgery.report.source_program import source_program
from hlo_surgery.requests.request import request_by
from hlo_surgery.rewriting.diagnostics import refused_outputs
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.targets.costs import Cost, cost
from hlo_surgery.wording import counted, quantity, table

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1d2129; --muted: #5a6270; --rule: #d5dae1; --panel: #f5f7f9;
  --line: #eef1f4; --line-edge: #b4bcc8;
  --site: #ffe4bf; --site-edge: #c46a00;
  --tail: #dbe9fb; --tail-edge: #2f6fbf;
  --gradient: #ffffff; --gradient-edge: #1d2129;
  --statistic: #d6f0dc; --statistic-edge: #1f7d3a;
  --refusal: #fde0de; --refusal-edge: #b3261e;
  --flow: #b9c1cc;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181d; --ink: #e7eaef; --muted: #a4adba; --rule: #39414d; --panel: #1d2128;
    --line: #272d36; --line-edge: #566070;
    --site: #4a3312; --site-edge: #f0a04a;
    --tail: #1b3253; --tail-edge: #76aaf0;
    --gradient: #15181d; --gradient-edge: #e7eaef;
    --statistic: #17391f; --statistic-edge: #62c67d;
    --refusal: #4d1d1a; --refusal-edge: #ff8a80;
    --flow: #4d5664;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px 32px 64px; max-width: 1400px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif;
}
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 8px; }
p { margin: 4px 0 12px; max-width: 80ch; }
.muted { color: var(--muted); }
code, pre, svg text, td { font-family: "DejaVu Sans Mono", ui-monospace, Menlo, monospace; }
code, pre, td { font-size: 13px; }
pre { overflow-x: auto; background: var(--panel); padding: 10px 12px; margin: 8px 0; }
.wide { overflow-x: auto; }
.tall { max-height: 80vh; overflow: auto; }
.tall th { position: sticky; top: 0; background: var(--page); }
table { border-collapse: collapse; min-width: 60%; }
th, td { text-align: left; vertical-align: top; padding: 5px 16px 5px 0; }
th { border-bottom: 2px solid var(--rule); font-weight: 600; white-space: nowrap; }
td { border-bottom: 1px solid var(--rule); }
td.name { overflow-wrap: anywhere; min-width: 16ch; }
td.number, th.number { text-align: right; white-space: nowrap; }
summary { cursor: pointer; padding: 4px 0; overflow-wrap: anywhere; }
.refused { color: var(--refusal-edge); }
.notice {
  border-left: 4px solid var(--refusal-edge); background: var(--panel); padding: 8px 14px;
  margin: 12px 0; max-width: 100ch; overflow-wrap: anywhere;
}
.notice.given { border-color: var(--site-edge); }
.keys { display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 8px 0 12px; padding: 0; }
.keys li { list-style: none; }
.key { display: inline-block; width: 14px; height: 14px; margin-right: 7px; border: 1.5px solid;
  vertical-align: -2px; border-radius: 3px; }
.key.line { background: var(--line); border-color: var(--line-edge); }
.key.site { background: var(--site); border-color: var(--site-edge); }
.key.tail { background: var(--tail); border-color: var(--tail-edge); }
.key.gradient { background: var(--gradient); border-color: var(--gradient-edge); }
.key.statistic { background: var(--statistic); border-color: var(--statistic-edge); }
.key.refusal { background: var(--refusal); border-color: var(--refusal-edge); }
.key.original { background: var(--tail-edge); border-color: var(--tail-edge); }
.key.rewritten { background: var(--statistic-edge); border-color: var(--statistic-edge); }
svg { display: block; }
.wide svg { max-width: max(100%, 920px); height: auto; }
svg text { font-size: 12px; fill: var(--ink); }
svg text.detail, svg text.tick { fill: var(--muted); }
svg text.title { font-weight: 600; }
svg text.end { text-anchor: end; }
svg text.middle { text-anchor: middle; }
.box rect { stroke-width: 1.5; }
.box.line rect { fill: var(--line); stroke: var(--line-edge); }
.box.site rect { fill: var(--site); stroke: var(--site-edge); }
.box.tail rect { fill: var(--tail); stroke: var(--tail-edge); }
.box.gradient rect { fill: var(--gradient); stroke: var(--gradient-edge); }
.box.statistic rect { fill: var(--statistic); stroke: var(--statistic-edge); }
.box.refusal rect, .box.refused rect { fill: var(--refusal); stroke: var(--refusal-edge); }
.box.refusal text.detail { fill: var(--ink); }
.curve { fill: none; stroke-width: 1.4; stroke: var(--flow); }
.curve.own { stroke: var(--site-edge); }
.curve.tailing { stroke: var(--tail-edge); }
.curve.measuring { stroke: var(--statistic-edge); }
.curve.refusing { stroke: var(--refusal-edge); stroke-width: 2; }
.axis { stroke: var(--rule); fill: none; }
.stairs { fill: none; stroke-width: 2; }
.stairs.original { stroke: var(--tail-edge); }
.stairs.rewritten { stroke: var(--statistic-edge); }
"""


POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Of longer MLIR the beginning is shown.
SHOWN = 120
GRADIENTS = (
    "A gradient is a contraction over the examples, and its tail. Its statistics are computed "
    "beside it, from what the contraction sums. "
)
COLLAPSED = "All ops of which nothing is said are collapsed into the source lines of the program."
OF_PLANS = ("site", "tail", "gradient", "statistic")
KEYS = {
    "line": "source line of the program",
    "site": "contraction over the examples",
    "tail": "tail: what lies behind it",
    "gradient": "gradient, as before",
    "statistic": "statistic, and the strategy that makes it",
    "refusal": "refused",
}


def page(title: str, found: Findings) -> str:
    """The whole page; `title`: what the module is called."""
    sections = [
        _head(title, found),
        *(_refusal(found) if found.refused else []),
        *(_plan(found.plan) if found.plan else []),
        *_graph(found),
        *_memory(found),
        *line_costs(found),
        *(_additions(found.additions) if found.additions else []),
    ]
    head = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: hlo-surgery</title><style>{STYLE}</style></head>"
    )
    return f"{head}<body>{''.join(sections)}</body></html>\n"


def _head(title: str, found: Findings) -> str:
    said = "Refused." if found.refused else "Rewritten."
    if found.plan:
        plan = found.plan
        gradients = counted(len(plan.outputs), "gradient")
        statistics = ", ".join(plan.outputs[0].strategies)
        left = "the others: " if found.refused else ""
        said += f" {left}{gradients} of {plan.head()}; {statistics}"
    return f'<h1>{escape(title)}</h1><p class="muted">{escape(said)}</p>'


def _refusal(found: Findings) -> Iterable[str]:
    yield "<h2>Refused</h2>"
    for reason, names in by_reason(found.refused).items():
        within = f" (in {escape(reason.library)})" if reason.library else ""
        yield (
            f'<div class="notice"><code>{escape(reason.where)}</code>{within}: '
            f"<code>{escape(reason.op)}</code>: {escape(reason.why)}<br>"
            f"<b>outputs</b> <code>{escape(', '.join(names))}</code><br>"
            f"<b>help</b> {escape(reason.help)}</div>"
        )


def _plan(plan: Plan) -> Iterable[str]:
    yield "<h2>Plan</h2>"
    for each in plan.notes():
        yield f'<div class="notice given">{escape(each)}</div>'
    plans = table(*plan_table(plan), numbers=("FLOP", "bytes"))
    yield f'<div class="tall">{plans}</div>'


def _graph(found: Findings) -> Iterable[str]:
    yield "<h2>Program</h2>"
    yield f"<p>{GRADIENTS if found.plan else ''}{COLLAPSED}</p>"
    there = {"line", *(["refusal"] if found.refused else []), *(OF_PLANS if found.plan else [])}
    yield keys({kind: words for kind, words in KEYS.items() if kind in there})
    yield f'<div class="wide">{program_graph(found)}</div>'


def _memory(found: Findings) -> Iterable[str]:
    yield "<h2>Memory</h2>"
    if found.no_costs:
        yield f"<p>Not known: {escape(found.no_costs)}</p>"
        return
    target = found.costs["original"].target
    yield f"<p>Live bytes along the program, as XLA schedules it for {escape(target)}.</p>"
    yield keys(
        {
            name: f"{name}: at most {quantity(max(step.bytes for step in cost.staircase))}B live; "
            f"XLA plans {quantity(cost.peak_bytes)}B"
            for name, cost in found.costs.items()
        }
    )
    yield f'<div class="wide">{memory_chart(found.costs)}</div>'


def _additions(found: Sequence[Addition]) -> Iterable[str]:
    yield f"<h2>Added ops</h2><p>{counted(sum(len(each.ops) for each in found), 'op')} in all.</p>"
    yield '<div class="tall">'
    for addition in found:
        summary = f"{addition.scope}: {counted(len(addition.ops), 'op')}"
        yield (
            f"<details><summary><code>{escape(summary)}</code></summary>"
            f"<p>{escape(addition.words)}</p><p>{escape(addition.counts)}</p>"
            f"<pre>{escape(_mlir(addition))}</pre></details>"
        )
    yield "</div>"


def _mlir(addition: Addition) -> str:
    lines = [f"{op.mlir}  // {op.where}" for op in addition.ops[:SHOWN]]
    if addition.ops[SHOWN:]:
        lines.append(f"... and {len(addition.ops) - SHOWN} more: hlo-surgery diff")
    return "\n".join(lines)


# What XLA does before anything else, so that both programs are counted alike.
TIDY = "cse", "func.func(trivial-dce)"


def find(module: Module, options: Mapping[str, Any]) -> Findings:
    """Rewrite a module, as `rewrite_module` takes `options`, and look at what has become of it.

    Raises ValueError or TypeError for wrong use. Refusals are findings.
    """
    rewritten, refused = _rewritten(module, options)
    original = mlir.clone(module.code)
    inline_calls(original)
    free_invariants(original)
    mlir.run_passes(original, *TIDY)
    modules = {"original": module} | ({"rewritten": rewritten} if rewritten else {})
    costs, why_not = _costs(modules, options.get("target"))
    return Findings(
        source_program(original),
        source_program(rewritten.code) if rewritten else None,
        rewritten.plan if rewritten else None,
        refused,
        additions(rewritten) if rewritten else (),
        costs,
        why_not,
    )


def _rewritten(
    module: Module, options: Mapping[str, Any]
) -> tuple[Module | None, dict[str, Reason]]:
    """The module rewritten for all gradients that can be, and why others are refused."""
    try:
        return rewrite_module(module, **options), {}
    except Refusal as refusal:
        reasons = _reasons(module, options, refusal)
    try:
        names = [module.outputs[number].name for number in request_by(module, options).gradients]
        left: Any = [name for name in names if name not in reasons]
        return rewrite_module(module, **(dict(options) | {"gradients": left})), reasons
    except (Refusal, ValueError, TypeError):
        return None, reasons


def _reasons(module: Module, options: Mapping[str, Any], refusal: Refusal) -> dict[str, Reason]:
    """By output; where the module cannot be analysed, or all outputs have shares and something else
    is refused, that alone.
    """
    try:
        found = refused_outputs(module, request_by(module, options))
    except Refusal:
        found = {}
    said = Reason(refusal.why, refusal.op, refusal.where, refusal.help, refusal.library)
    return found or {refusal.output or "all outputs": said}


def _costs(modules: Mapping[str, Module], target: str | None) -> tuple[dict[str, Cost], str]:
    """What each costs on a target; nothing, and the reason, where it cannot be compiled for it."""
    try:
        return {name: cost(module, target) for name, module in modules.items()}, ""
    except (Refusal, ValueError) as problem:
        return {}, str(problem)
