"""Page: findings as one HTML file that loads nothing and runs nothing.

Names in a module are whatever its author wrote. All of them are escaped, and the page forbids
itself scripts and loads, so that a browser would refuse what slipped through.
"""

from collections.abc import Iterable, Sequence
from html import escape

from hlo_surgery.counted import counted
from hlo_surgery.planning.plan import Plan, plan_row, quantity
from hlo_surgery.report.additions import Addition
from hlo_surgery.report.findings import Findings, Memory
from hlo_surgery.report.html import keys, table
from hlo_surgery.report.line_costs import line_costs
from hlo_surgery.report.memory_chart import memory_chart
from hlo_surgery.report.program_graph import program_graph
from hlo_surgery.report.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Of longer MLIR the beginning is shown.
SHOWN = 120
GRADIENTS = (
    "A gradient is a contraction over the examples, and its tail. Its statistics are computed "
    "beside it, from what the contraction sums. "
)
COLLAPSED = "All ops of which nothing is said are collapsed into the source lines of the program."
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
        statistics = ", ".join(plan.outputs[0].strategies) if plan.outputs else ""
        left = "the others: " if found.refused else ""
        said += f" {left}{gradients} of {plan.head()}; {statistics}"
    return f'<h1>{escape(title)}</h1><p class="muted">{escape(said)}</p>'


def _refusal(found: Findings) -> Iterable[str]:
    yield "<h2>Refused</h2>"
    for reason in dict.fromkeys(found.refused.values()):
        names = [name for name, each in found.refused.items() if each == reason]
        within = f" (in {escape(reason.library)})" if reason.library else ""
        yield (
            f'<div class="notice"><code>{escape(reason.where)}</code>{within}: '
            f"<code>{escape(reason.op)}</code>: {escape(reason.why)}<br>"
            f"<b>outputs</b> <code>{escape(', '.join(names))}</code><br>"
            f"<b>help</b> {escape(reason.help)}</div>"
        )


def _plan(plan: Plan) -> Iterable[str]:
    yield "<h2>Plan</h2>"
    for reason in plan.data:
        yield (
            '<div class="notice given">taken as constant: '
            f"<code>{escape(reason.op)}</code> at <code>{escape(reason.where)}</code>: "
            f"{escape(reason.why)}</div>"
        )
    for each in plan.trusted:
        yield f'<div class="notice given">{escape(str(each))}</div>'
    if plan.unnamed:
        yield f'<div class="notice given">{escape(plan.beside_batch())}</div>'
    statistics = list(plan.outputs[0].strategies) if plan.outputs else []
    titles = ["gradient", *statistics, "contractions", "FLOP", "bytes", "tail"]
    titles.append("predicted beside the gradient")
    rows = (plan_row(output, statistics) for output in plan.outputs)
    yield f'<div class="tall">{table(titles, rows, numbers=("FLOP", "bytes"))}</div>'


def _graph(found: Findings) -> Iterable[str]:
    yield "<h2>Program</h2>"
    yield f"<p>{GRADIENTS if found.plan else ''}{COLLAPSED}</p>"
    missing = {"refusal"} if not found.refused else set[str]()
    missing |= {"site", "tail", "gradient", "statistic"} if found.plan is None else set()
    yield keys({kind: words for kind, words in KEYS.items() if kind not in missing})
    yield f'<div class="wide">{program_graph(found)}</div>'


def _memory(found: Findings) -> Iterable[str]:
    yield "<h2>Memory</h2>"
    if found.no_memory:
        yield f"<p>Not known: {escape(found.no_memory)}</p>"
        return
    yield f"<p>Live bytes along the program, as XLA schedules it for {escape(found.target)}.</p>"
    yield keys({each.name: _peaks(each) for each in found.memory})
    yield f'<div class="wide">{memory_chart(found.memory)}</div>'


def _peaks(memory: Memory) -> str:
    most = max((step.bytes for step in memory.steps), default=0)
    return f"{memory.name}: at most {quantity(most)}B live; XLA plans {quantity(memory.peak)}B"


def _additions(found: Sequence[Addition]) -> Iterable[str]:
    yield f"<h2>Added ops</h2><p>{counted(sum(len(each.ops) for each in found), 'op')} in all.</p>"
    yield '<div class="tall">'
    for addition in found:
        numbers = ", ".join(f"{number} {op}" for op, number in addition.counts.items())
        summary = f"{addition.scope}: {counted(len(addition.ops), 'op')}"
        yield (
            f"<details><summary><code>{escape(summary)}</code></summary>"
            f"<p>{escape(addition.words)}</p><p>{escape(numbers)}</p>"
            f"<pre>{escape(_mlir(addition))}</pre></details>"
        )
    yield "</div>"


def _mlir(addition: Addition) -> str:
    lines = [f"{op.mlir}  // {op.where}" for op in addition.ops[:SHOWN]]
    more = len(addition.ops) - SHOWN
    return "\n".join(lines + ([f"... and {more} more: hlo-surgery diff"] if more > 0 else []))
