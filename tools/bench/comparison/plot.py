"""The figure: time against the plain gradient's over batch, width and depth, as in the paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.comparison.runs import Row
from tools.bench.comparison.tables import ratio

AXES = ("batch", "width", "depth")
Tables = Sequence[Sequence[Row]]


def plot(tables: Tables, file: Path) -> None:
    """A panel of lines for each size that varies in a family, and one of bars for the rest."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    lines = {key: found for key in _keys(tables) if len(found := _along(tables, *key)) > 1}
    drawn = [rows[0].problem for found in lines.values() for rows in found]
    single = [rows for rows in tables if rows[0].problem not in drawn]
    colors = {name: f"C{number}" for number, name in enumerate(_methods(tables))}
    count = len(lines) + bool(single)
    figure, panels = plt.subplots(
        1, count, figsize=(4.5 * count, 4.5), squeeze=False, layout="constrained"
    )
    for (family, axis), panel in zip(lines, panels[0], strict=False):
        panel.set(
            title=family, xlabel=axis, ylabel="time / plain gradient's", xscale="log", yscale="log"
        )
        _draw_lines(panel, lines[family, axis], axis, colors)
    if single:
        _draw_bars(panels[0][-1], single, colors)
    handles = [
        Line2D([], [], color=color, marker="o", label=name) for name, color in colors.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(colors))
    figure.savefig(file, dpi=110)


def _keys(tables: Tables) -> list[tuple[str, str]]:
    families = dict.fromkeys(rows[0].problem.family for rows in tables)
    return [(family, axis) for family in families for axis in AXES]


def _along(tables: Tables, family: str, axis: str) -> Tables:
    """The tables of a family that differ from its first one along this axis alone."""
    own = [rows for rows in tables if rows[0].problem.family == family]
    others = [name for name in ("shape", *AXES) if name != axis]

    def same(rows: Sequence[Row]) -> bool:
        return all(
            getattr(rows[0].problem, name) == getattr(own[0][0].problem, name) for name in others
        )

    return sorted(filter(same, own), key=lambda rows: getattr(rows[0].problem, axis))


def _draw_lines(panel: Any, tables: Tables, axis: str, colors: Mapping[str, str]) -> None:
    for name, color in colors.items():
        found = [(getattr(rows[0].problem, axis), _ratio_of(rows, name)) for rows in tables]
        points = [(size, value) for size, value in found if value]
        if points:
            panel.plot(*zip(*points, strict=True), marker="o", color=color)
    sizes = [getattr(rows[0].problem, axis) for rows in tables]
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.set_xticks([], minor=True)


def _draw_bars(panel: Any, tables: Tables, colors: Mapping[str, str]) -> None:
    height = 0.8 / len(colors)
    for number, (name, color) in enumerate(colors.items()):
        places = [place - 0.4 + height * number for place in range(len(tables))]
        panel.barh(places, [_ratio_of(rows, name) for rows in tables], height, color=color)
    panel.set(xlabel="time / plain gradient's", xscale="log")
    panel.set_yticks(
        range(len(tables)), [rows[0].problem.title for rows in tables], fontsize="small"
    )
    panel.axvline(1, color="black", linewidth=0.8)
    panel.invert_yaxis()


def _methods(tables: Tables) -> list[str]:
    """Those that have run anywhere."""
    return list(dict.fromkeys(row.method for rows in tables for row in rows if row.seconds))


def _ratio_of(rows: Sequence[Row], method: str) -> float:
    return next((ratio(row, rows[0]) for row in rows if row.method == method and row.seconds), 0)
