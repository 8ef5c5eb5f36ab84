"""Line costs: FLOPs and bytes by the user's source lines, of the program and of what was added."""

from collections.abc import Iterable, Iterator
from html import escape

from hlo_surgery.planning.plan import quantity
from hlo_surgery.report.findings import Findings
from hlo_surgery.report.html import keys
from hlo_surgery.report.source_program import SourceProgram, Work

# Lines that cost least are left out beyond so many.
MOST = 60
HEAD = (
    '<table><thead><tr><th>source line</th><th class="number">FLOP</th>'
    '<th class="number">added FLOP</th><th class="number">bytes</th>'
    '<th class="number">added bytes</th><th></th></tr></thead><tbody>'
)


def line_costs(found: Findings) -> Iterator[str]:
    """A section with a row for each line, the costliest first."""
    yield "<h2>Cost by source line</h2>"
    unknown = (found.rewritten or found.original).unknown_loops
    loops = f" Loops of unknown trips count once: {unknown}." if unknown else ""
    yield (
        "<p>By bytes. Counted op by op, loops as often as they run, before XLA fuses any. "
        f"What is added counts at the line of the contraction that it stands for.{loops}</p>"
    )
    if found.rewritten:
        yield keys({"own": "bytes of the program", "added": "bytes added"})
    rows = sorted(_rows(found), key=lambda row: -(row[1].bytes + row[2].bytes))
    most = max((own.bytes + added.bytes for _, own, added in rows), default=0) or 1
    body = "".join(_row(where, own, added, most) for where, own, added in rows[:MOST])
    yield f'<div class="wide">{HEAD}{body}</tbody></table></div>'
    if len(rows) > MOST:
        yield f"<p>{len(rows) - MOST} more lines cost less.</p>"


def _rows(found: Findings) -> Iterable[tuple[str, Work, Work]]:
    original = found.original.lines
    rewritten = (found.rewritten or SourceProgram({}, {}, 0)).lines
    for where in {**original, **rewritten}:
        own = original[where].own if where in original else Work()
        added = rewritten[where].added if where in rewritten else Work()
        if own.bytes or added.bytes:
            yield where, own, added


def _row(where: str, own: Work, added: Work, most: int) -> str:
    numbers = (own.flops, added.flops, own.bytes, added.bytes)
    cells = "".join(
        f'<td class="number">{quantity(number)}{"" if i < 2 else "B"}</td>'
        for i, number in enumerate(numbers)
    )
    bars = "".join(
        f'<span class="{kind}" style="width:{100 * work.bytes / most:.2f}%"></span>'
        for kind, work in (("own", own), ("added", added))
    )
    name = f'<td class="name">{escape(where)}</td>'
    return f'<tr>{name}{cells}<td><div class="bar">{bars}</div></td></tr>'
