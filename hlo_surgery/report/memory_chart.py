"""Memory chart: live bytes of both programs, over the part of each that has run."""

from collections.abc import Sequence
from html import escape

from hlo_surgery.planning.plan import quantity
from hlo_surgery.report.drawing import picture, text
from hlo_surgery.report.findings import Memory
from hlo_surgery.targets.scheduled.live_memory import Step

WIDTH, HEIGHT = 1000, 330
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 20, 60
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
    return picture(WIDTH, HEIGHT, parts, "live memory along the original and the rewritten program")


def _axes(top: int) -> list[str]:
    parts: list[str] = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in range(TICKS + 1):
        y = bottom - (bottom - TOP) * tick / TICKS
        parts.append(f'<path class="axis" d="M{LEFT} {y:g}H{right}"/>')
        parts.append(text(LEFT - 10, y + 4, f"{quantity(top * tick / TICKS)}B", "tick end"))
        x = LEFT + (right - LEFT) * tick / TICKS
        parts.append(text(x, bottom + 20, f"{100 * tick // TICKS}%", "tick middle"))
    what = "progress: instructions of each program that have been run, a loop's body once"
    parts.append(text((LEFT + right) / 2, bottom + 44, what, "tick middle"))
    return parts


def _path(steps: Sequence[Step], top: int) -> str:
    """Horizontal and vertical strokes."""
    columns = min(COLUMNS, len(steps))
    edges = [len(steps) * column // columns for column in range(columns + 1)]
    path = ""
    for column in range(columns):
        live = max(step.bytes for step in steps[edges[column] : edges[column + 1]])
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * live / top
        path += f"{'V' if path else f'M{_x(0, columns):g} '}{y:g}H{_x(column + 1, columns):g}"
    return path


def _x(column: int, columns: int) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * column / columns
