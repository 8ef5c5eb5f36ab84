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

from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.plan import OutputPlan, Plan, site_cost
from hlo_surgery.report.drawing import Box, curve, height_of, picture, text
from hlo_surgery.report.findings import Findings, by_reason
from hlo_surgery.report.source_program import Line, SourceProgram, Work
from hlo_surgery.targets.costs import Cost
from hlo_surgery.targets.live_memory import highest
from hlo_surgery.wording import bare, counted, quantity, table

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
    """Boxes and curves, and how far down they reach. `from_lines`: curves from a source line to a
    box, of a kind, which are drawn when lines have their places.
    """

    boxes: list[Box] = field(default_factory=list[Box])
    curves: list[str] = field(default_factory=list[str])
    from_lines: list[tuple[str, Box, str]] = field(default_factory=list[tuple[str, Box, str]])
    bottom: float = TOP

    def box(self, x: float, y: float, width: float, kind: str, *lines: str) -> Box:
        """Another one."""
        made = Box(x, y, width, kind, lines, f"box{len(self.boxes)}")
        self.boxes.append(made)
        self.bottom = max(self.bottom, made.y + made.height)
        return made

    def join(self, ones: Iterable[Box], other: Box, kind: str) -> None:
        """Curves from each to another on their right, of both their names."""
        for one in ones:
            names = f"{kind} {one.name} {other.name}"
            self.curves.append(curve(one.right, one.middle, other.x, other.middle, names))


def program_graph(found: Findings) -> str:
    """The graph, as SVG."""
    drawn = _Drawn()
    _refusals(drawn, found.refused)
    if found.plan is not None:
        for group in _by_line(found.plan, list(found.original.lines)):
            _row(drawn, group)
    _lines(drawn, found)
    parts = [_highlights(drawn.boxes), *drawn.curves, *(box.svg() for box in drawn.boxes)]
    label = "source lines, contractions, tails, gradients and statistics"
    return picture(WIDTH, drawn.bottom + TOP, parts, label)


def _highlights(boxes: Sequence[Box]) -> str:
    """Style: the curves of the box that the pointer rests on stand out."""
    rules = (f"svg:has(#{b.name}:hover) .{b.name}{{opacity:1;stroke-width:3}}" for b in boxes)
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


def _refusals(drawn: _Drawn, refused: Mapping[str, Reason]) -> None:
    """A box for each reason, beside the line that it names."""
    for reason, names in by_reason(refused).items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        within = f" (in {reason.library})" if reason.library else ""
        said = f"{bare(reason.op)} at {reason.where}{within}: {reason.why}"
        lines = (
            f"refused: {', '.join(names[:NAMED])}{more}",
            *textwrap.wrap(said, WRAPPED),
            *textwrap.wrap(f"help: {reason.help}", WRAPPED),
        )
        box = drawn.box(SITES_AT, drawn.bottom, WIDTH - SITES_AT - 10, "refusal", *lines)
        drawn.from_lines.append((reason.where, box, "refusing"))
        drawn.bottom += ROW_GAP


def _row(drawn: _Drawn, group: Sequence[OutputPlan]) -> None:
    """Of gradients that are alike the contractions; behind them tail and gradient, and below these
    the statistics.
    """
    top, output, alike = drawn.bottom, group[0], len(group)
    sites = _sites(drawn, output, alike)
    said = f"gradient, and {alike - 1} more like it" if alike > 1 else output.note or "gradient"
    gradient = drawn.box(GRADIENT_AT, top, GRADIENT_WIDTH, "gradient", output.name, said)
    before = sites
    if output.tail:
        words = " ".join(map(bare, output.tail))
        tail = drawn.box(RESULTS_AT, top, RESULTS_WIDTH, "tail", words, "tail")
        drawn.join(sites, tail, "tailing")
        before = [tail]
    drawn.join(before, gradient, "tailing")
    y = top + height_of(2) + GAP
    for strategy in dict.fromkeys(output.strategies.values()):
        names = [name for name, taken in output.strategies.items() if taken == strategy]
        words = f"{', '.join(names)}: {strategy}"
        box = drawn.box(RESULTS_AT, y, STATISTIC_WIDTH, "statistic", words)
        drawn.join(sites, box, "measuring")
        y += box.height + GAP
    drawn.bottom += ROW_GAP


def _sites(drawn: _Drawn, output: OutputPlan, alike: int) -> list[Box]:
    boxes, y = list[Box](), drawn.bottom
    each = f"{alike} of them, each " if alike > 1 else ""
    for site in output.sites:
        runs = f" × {site.trips}" if site.trips > 1 else ""
        words = f"{bare(site.op)}{runs}", site.where, each + site_cost(site)
        boxes.append(drawn.box(SITES_AT, y, SITES_WIDTH, "site", *words))
        drawn.from_lines.append((site.where, boxes[-1], "own"))
        y += boxes[-1].height + GAP
    return boxes


def _lines(drawn: _Drawn, found: Findings) -> None:
    """The source lines, spread over the height of what is on their right, and all their curves."""
    groups = list(_groups(found.original, {where for where, _, _ in drawn.from_lines}))
    step = max(height_of(2) + GAP, (drawn.bottom - TOP) / max(len(groups), 1))
    boxes: dict[str, Box] = {}
    refusing = {reason.where for reason in found.refused.values()}
    for number, group in enumerate(groups):
        wheres = [line.where for line in group]
        kind = "line" if refusing.isdisjoint(wheres) else "refused"
        box = drawn.box(LINES_AT, TOP + number * step, LINES_WIDTH, kind, *_words(group))
        boxes |= dict.fromkeys(wheres, box)
    for where, box, kind in drawn.from_lines:
        if where in boxes:
            drawn.join([boxes[where]], box, kind)


def _groups(program: SourceProgram, named: set[str]) -> Iterator[list[Line]]:
    """Lines that compute something, each alone, or runs of those of which nothing is to be said."""
    lines = [x for x in program.lines.values() if x.own.flops or x.where in named]
    few = len(lines) <= MANY_LINES
    for alone, run in groupby(lines, lambda line: few or line.where in named):
        if alone:
            yield from ([line] for line in run)
        else:
            yield list(run)


def _words(group: Sequence[Line]) -> tuple[str, str]:
    ops = counted(sum(line.own.ops for line in group), "op")
    cost = f"{ops}, {quantity(sum(line.own.flops for line in group))}FLOP"
    return (group[0].where if len(group) == 1 else counted(len(group), "line")), cost


CHART_WIDTH, CHART_HEIGHT = 1000, 330
LEFT, RIGHT, CHART_TOP, BOTTOM = 90, 980, 20, 270
# What of a program is drawn: the most that is live in each of so many equal parts.
COLUMNS = 600
TICKS = 4


def memory_chart(costs: Mapping[str, Cost]) -> str:
    """One staircase a program, on one scale, as SVG."""
    most = {name: highest(cost.staircase, COLUMNS) for name, cost in costs.items()}
    top = max((live for each in most.values() for live in each), default=0) or 1
    stairs = [
        f'<path class="stairs {escape(name)}" d="{_path(each, top)}"/>'
        for name, each in most.items()
    ]
    label = "live memory along the original and the rewritten program"
    return picture(CHART_WIDTH, CHART_HEIGHT, [*_axes(top), *stairs], label)


def _axes(top: int) -> Iterator[str]:
    for tick in range(TICKS + 1):
        share = tick / TICKS
        x, y = LEFT + (RIGHT - LEFT) * share, BOTTOM - (BOTTOM - CHART_TOP) * share
        yield f'<path class="axis" d="M{LEFT} {y:g}H{RIGHT}"/>'
        yield text(LEFT - 10, y + 4, f"{quantity(top * share)}B", "tick end")
        yield text(x, BOTTOM + 20, f"{share:.0%}", "tick middle")
    what = "progress: instructions of each program that have been run, a loop's body once"
    yield text((LEFT + RIGHT) / 2, BOTTOM + 44, what, "tick middle")


def _path(most: Sequence[int], top: int) -> str:
    """Horizontal and vertical strokes."""
    width, path = (RIGHT - LEFT) / max(len(most), 1), ""
    for column, live in enumerate(most):
        y = BOTTOM - (BOTTOM - CHART_TOP) * live / top
        path += f"{'V' if path else f'M{LEFT} '}{y:g}H{LEFT + (column + 1) * width:g}"
    return path


# Lines that cost least are left out beyond so many.
MOST = 60
NUMBERS = ("FLOP", "added FLOP", "bytes", "added bytes")


def line_costs(found: Findings) -> Iterator[str]:
    """A section with a row for each line, the costliest first."""
    yield "<h2>Cost by source line</h2>"
    unknown = (found.rewritten or found.original).unknown_loops
    loops = f" Loops of unknown trips count once: {unknown}." if unknown else ""
    yield (
        "<p>By bytes. Counted op by op, loops as often as they run, before XLA fuses any. "
        f"What is added counts at the line of the contraction that it stands for.{loops}</p>"
    )
    rows = sorted(_line_works(found), key=lambda row: -(row[1].bytes + row[2].bytes))
    cells = [
        (where, *map(quantity, (own.flops, added.flops, own.bytes, added.bytes)))
        for where, own, added in rows[:MOST]
    ]
    yield f'<div class="wide">{table(["source line", *NUMBERS], cells, NUMBERS)}</div>'
    if len(rows) > MOST:
        yield f"<p>{len(rows) - MOST} more lines cost less.</p>"


def _line_works(found: Findings) -> Iterable[tuple[str, Work, Work]]:
    original = found.original.lines
    rewritten = (found.rewritten or SourceProgram({}, 0)).lines
    for where in {**original, **rewritten}:
        own = original.get(where, Line(where)).own
        added = rewritten.get(where, Line(where)).added
        if own.bytes or added.bytes:
            yield where, own, added
