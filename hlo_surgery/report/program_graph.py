"""Program graph: the user's source lines on the left, each gradient's contractions, tail and
statistics on the right, and refusals in place.

What is neither is collapsed: ops into their source lines, and, where there are many, lines that no
contraction and no refusal names into runs of them.

Memory chart: live bytes of both programs, over the part of each that has run.

Line costs: FLOPs and bytes by the user's source lines, of the program and of what was added.
"""

import textwrap
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

from hlo_surgery.dumps import counted
from hlo_surgery.passes.emit.splice import ANY, in_location
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.strategies.gradient_costs import SitePlan
from hlo_surgery.plan import OutputPlan, Plan, bare, quantity
from hlo_surgery.report.drawing import Box, curve, height_of, keys, picture, text
from hlo_surgery.report.findings import Addition, Findings, Memory
from hlo_surgery.report.source_program import Line, SourceProgram, Work
from hlo_surgery.targets.live_memory import Step, highest

# Lines beyond these are collapsed where nothing is to be said of them.
MANY_LINES = 40
LINES_AT, LINES_WIDTH = 10, 330
SITES_AT, SITES_WIDTH = 430, 305
RESULTS_AT, RESULTS_WIDTH = 800, 190
GRADIENT_AT, GRADIENT_WIDTH = 1040, 260
STATISTIC_WIDTH = GRADIENT_AT + GRADIENT_WIDTH - RESULTS_AT
WIDTH = GRADIENT_AT + GRADIENT_WIDTH + 10
GAP, ROW_GAP, TOP = 10, 26, 12
WRAPPED = (GRADIENT_AT + GRADIENT_WIDTH - SITES_AT) // 8
# So few of the outputs of one reason are named.
NAMED = 4


@dataclass
class _Drawn:
    """Boxes and curves, and how far down they reach."""

    boxes: list[Box] = field(default_factory=list[Box])
    curves: list[str] = field(default_factory=list[str])
    bottom: float = TOP

    def box(self, x: float, y: float, width: float, kind: str, *lines: str) -> Box:
        """Another one."""
        made = Box(x, y, width, kind, lines, f"box{len(self.boxes)}")
        self.boxes.append(made)
        self.bottom = max(self.bottom, made.y + made.height)
        return made

    def join(self, one: Box, other: Box, kind: str) -> None:
        """A curve from one to another on its right, of both their names."""
        names = f"{kind} {one.name} {other.name}"
        self.curves.append(curve(one.right, one.middle, other.x, other.middle, names))


@dataclass(frozen=True)
class _Wanted:
    """A curve from a source line to a box, which is drawn when lines have their places."""

    where: str
    box: Box
    kind: str


def program_graph(found: Findings) -> str:
    """The graph, as SVG."""
    drawn, wanted = _Drawn(), list[_Wanted]()
    order = list(found.original.lines)
    _refusals(drawn, wanted, found.refused)
    if found.plan is not None:
        for group in _by_line(found.plan, order):
            _row(drawn, wanted, group)
        _in_common(drawn, found.additions, found.plan)
    _lines(drawn, wanted, found)
    parts = [_highlights(drawn.boxes), *drawn.curves, *(box.svg() for box in drawn.boxes)]
    label = "source lines, contractions, tails, gradients and statistics"
    return picture(WIDTH, drawn.bottom + TOP, parts, label)


def _highlights(boxes: Sequence[Box]) -> str:
    """Style: the curves of the box that the pointer rests on stand out."""
    rules = (f"svg:has(#{box.name}:hover) .{box.name}{{opacity:1;stroke-width:3}}" for box in boxes)
    return f"<style>{''.join(rules)}</style>"


def _by_line(plan: Plan, order: Sequence[str]) -> list[list[OutputPlan]]:
    """The gradients as the program comes to the lines of their contractions, those of one plan
    together, as the layers of a model have it.
    """
    places = {where: i for i, where in enumerate(order)}
    alike: dict[Hashable, list[OutputPlan]] = {}
    for output in plan.outputs:
        taken = tuple(output.strategies.items())
        alike.setdefault((output.sites, output.tail, taken, output.note), []).append(output)

    def place(group: Sequence[OutputPlan]) -> int:
        wheres = [site.where for site in group[0].sites]
        return min((places.get(where, 0) for where in wheres), default=len(order))

    return sorted(alike.values(), key=place)


def _refusals(drawn: _Drawn, wanted: list[_Wanted], refused: Mapping[str, Reason]) -> None:
    """A box for each reason, beside the line that it names."""
    for reason in dict.fromkeys(refused.values()):
        names = [name for name, each in refused.items() if each == reason]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        within = f" (in {reason.library})" if reason.library else ""
        said = [
            f"refused: {', '.join(names[:NAMED])}{more}",
            *_wrapped(f"{bare(reason.op)} at {reason.where}{within}: {reason.why}"),
            *_wrapped(f"help: {reason.help}"),
        ]
        box = drawn.box(SITES_AT, drawn.bottom, WIDTH - SITES_AT - 10, "refusal", *said)
        wanted.append(_Wanted(reason.where, box, "refusing"))
        drawn.bottom += ROW_GAP


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WRAPPED)


def _row(drawn: _Drawn, wanted: list[_Wanted], group: Sequence[OutputPlan]) -> None:
    """Of gradients that are alike the contractions; behind them tail and gradient, and below these
    the statistics.
    """
    top, output = drawn.bottom, group[0]
    sites = [_site(drawn, i, site, top, len(group)) for i, site in enumerate(output.sites)]
    wanted += [_Wanted(s.where, box, "own") for box, s in zip(sites, output.sites, strict=True)]
    tails = _tail(drawn, output.tail, top)
    gradient = drawn.box(GRADIENT_AT, top, GRADIENT_WIDTH, "gradient", *_title(group))
    _join(drawn, sites, tails, "tailing")
    _join(drawn, tails or sites, [gradient], "tailing")
    y = top + height_of(2) + GAP
    for strategy in dict.fromkeys(output.strategies.values()):
        names = [name for name, taken in output.strategies.items() if taken == strategy]
        words = f"{', '.join(names)}: {strategy}"
        box = drawn.box(RESULTS_AT, y, STATISTIC_WIDTH, "statistic", words)
        _join(drawn, sites, [box], "measuring")
        y += box.height + GAP
    drawn.bottom += ROW_GAP


def _title(group: Sequence[OutputPlan]) -> tuple[str, str]:
    first = group[0]
    more = len(group) - 1
    return first.name, f"gradient, and {more} more like it" if more else first.note or "gradient"


def _site(drawn: _Drawn, number: int, site: SitePlan, top: float, alike: int) -> Box:
    y = top + number * (height_of(3) + GAP)
    runs = f" × {site.trips}" if site.trips > 1 else ""
    each = f"{alike} of them, each " if alike > 1 else ""
    cost = f"{each}{quantity(site.flops)}FLOP, {quantity(site.bytes)}B"
    words = f"{bare(site.op)}{runs}", site.where, cost
    return drawn.box(SITES_AT, y, SITES_WIDTH, "site", *words)


def _tail(drawn: _Drawn, ops: Sequence[str], top: float) -> list[Box]:
    if not ops:
        return []
    words = " ".join(map(bare, ops)), "tail"
    return [drawn.box(RESULTS_AT, top, RESULTS_WIDTH, "tail", *words)]


def _join(drawn: _Drawn, ones: Iterable[Box], others: Sequence[Box], kind: str) -> None:
    for one in ones:
        for other in others:
            drawn.join(one, other, kind)


def _in_common(drawn: _Drawn, found: Sequence[Addition], plan: Plan) -> None:
    """What was added for several gradients at once."""
    names = {in_location(output.name) for output in plan.outputs}
    for addition in found:
        if addition.scope.output not in names:
            scope = addition.scope
            of = "all gradients" if scope.output == ANY else scope.output
            title = of if scope.statistic == ANY else f"{scope.statistic} of {of}"
            words = f"{scope.strategy}: {counted(len(addition.ops), 'op')} added"
            drawn.box(RESULTS_AT, drawn.bottom, STATISTIC_WIDTH, "statistic", title, words)
            drawn.bottom += GAP


def _lines(drawn: _Drawn, wanted: Sequence[_Wanted], found: Findings) -> None:
    """The source lines, spread over the height of what is on their right, and all their curves."""
    named = {each.where for each in wanted} | {r.where for r in found.refused.values()}
    groups = list(_groups(found.original, named))
    step = max(height_of(2) + GAP, (drawn.bottom - TOP) / max(len(groups), 1))
    boxes: dict[str, Box] = {}
    refusing = {reason.where for reason in found.refused.values()}
    for number, group in enumerate(groups):
        kind = "refused" if refusing & {line.where for line in group} else "line"
        box = drawn.box(LINES_AT, TOP + number * step, LINES_WIDTH, kind, *_words(group))
        boxes |= {line.where: box for line in group}
    for each in wanted:
        if each.where in boxes:
            drawn.join(boxes[each.where], each.box, each.kind)


def _groups(program: SourceProgram, named: set[str]) -> Iterator[list[Line]]:
    """Lines that compute something, each alone, or runs of those of which nothing is to be said."""
    lines = [x for x in program.lines.values() if x.own.flops or x.where in named]
    if len(lines) <= MANY_LINES:
        yield from ([line] for line in lines)
        return
    for is_named, run in groupby(lines, lambda line: line.where in named):
        if is_named:
            yield from ([line] for line in run)
        else:
            yield list(run)


def _words(group: Sequence[Line]) -> tuple[str, str]:
    ops = counted(sum(line.own.ops for line in group), "op")
    cost = f"{ops}, {quantity(sum(line.own.flops for line in group))}FLOP"
    return (group[0].where if len(group) == 1 else counted(len(group), "line")), cost


CHART_WIDTH, HEIGHT = 1000, 330
LEFT, RIGHT, CHART_TOP, BOTTOM = 90, 20, 20, 60
# What of a program is drawn: the most that is live in each of so many equal parts.
COLUMNS = 600
TICKS = 4


def memory_chart(memory: Sequence[Memory]) -> str:
    """One staircase a program, on one scale, as SVG."""
    top = max((step.bytes for each in memory for step in each.steps), default=0) or 1
    parts = [*_axes(top)]
    parts += [
        f'<path class="stairs {escape(each.name)}" d="{_path(each.steps, top)}"/>'
        for each in memory
    ]
    return picture(
        CHART_WIDTH, HEIGHT, parts, "live memory along the original and the rewritten program"
    )


def _axes(top: int) -> list[str]:
    parts: list[str] = []
    right, bottom = CHART_WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in range(TICKS + 1):
        y = bottom - (bottom - CHART_TOP) * tick / TICKS
        parts.append(f'<path class="axis" d="M{LEFT} {y:g}H{right}"/>')
        parts.append(text(LEFT - 10, y + 4, f"{quantity(top * tick / TICKS)}B", "tick end"))
        x = LEFT + (right - LEFT) * tick / TICKS
        parts.append(text(x, bottom + 20, f"{100 * tick // TICKS}%", "tick middle"))
    what = "progress: instructions of each program that have been run, a loop's body once"
    parts.append(text((LEFT + right) / 2, bottom + 44, what, "tick middle"))
    return parts


def _path(steps: Sequence[Step], top: int) -> str:
    """Horizontal and vertical strokes."""
    most = highest(steps, COLUMNS)
    width, path = (CHART_WIDTH - RIGHT - LEFT) / max(len(most), 1), ""
    for column, live in enumerate(most):
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - CHART_TOP) * live / top
        path += f"{'V' if path else f'M{LEFT} '}{y:g}H{LEFT + (column + 1) * width:g}"
    return path


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
    body = "".join(_line_row(where, own, added, most) for where, own, added in rows[:MOST])
    yield f'<div class="wide">{HEAD}{body}</tbody></table></div>'
    if len(rows) > MOST:
        yield f"<p>{len(rows) - MOST} more lines cost less.</p>"


def _rows(found: Findings) -> Iterable[tuple[str, Work, Work]]:
    original = found.original.lines
    rewritten = (found.rewritten or SourceProgram({}, 0)).lines
    for where in {**original, **rewritten}:
        own = original[where].own if where in original else Work()
        added = rewritten[where].added if where in rewritten else Work()
        if own.bytes or added.bytes:
            yield where, own, added


def _line_row(where: str, own: Work, added: Work, most: int) -> str:
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
