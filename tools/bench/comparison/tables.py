"""How rows are shown: a table for each problem, and CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.bench.comparison.runs import Row

CONSOLE = Console(width=None if Console().is_terminal else 140)


def show(rows: Sequence[Row]) -> None:
    """A problem's rows; ratios are to its first method."""
    table = method_table(rows[0].problem.title, ["XLA compiles", "runs"])
    for row in rows:
        table.add_row(row.method, *_cells(row, rows[0]), row.note)
    CONSOLE.print(table)


def method_table(title: str, further: Sequence[str]) -> Table:
    """An empty table of methods: time and temporaries, further columns of numbers, and a note."""
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for heading in ("time", "ratio", "estimate", "temporaries", "ratio", *further):
        table.add_column(heading, justify="right")
    table.add_column("note")
    return table


def _cells(row: Row, first: Row) -> list[str]:
    if row.seconds is None:
        return ["-"] * 7
    return [
        f"{row.seconds * 1e3:.4g} ms",
        f"{ratio(row, first):.2f} x" if first.seconds else "-",
        f"{(row.estimated or 0) / (first.estimated or 1):.2f} x" if row.estimated else "-",
        f"{row.temporaries / 1e6:.2f} MB",
        f"{row.temporaries / max(first.temporaries, 1):.2f} x",
        f"{row.compile_seconds:.1f} s",
        str(row.runs or "-"),
    ]


def ratio(row: Row, first: Row) -> float:
    """How many times as long as the first row of the same problem."""
    return (row.seconds or 0) / (first.seconds or 1)


def write_csv(tables: Sequence[Sequence[Row]], file: Path) -> None:
    """One line for each row; empty numbers where a method has not run."""
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, _values(tables[0][0], tables[0][0]))
        writer.writeheader()
        writer.writerows(_values(row, rows[0]) for rows in tables for row in rows)


def _values(row: Row, first: Row) -> dict[str, object]:
    problem, ran = row.problem, row.seconds is not None
    return {
        "family": problem.family,
        "shape": problem.shape,
        "batch": problem.batch,
        "width": problem.width or "",
        "depth": problem.depth or "",
        "method": row.method,
        "seconds": row.seconds,
        "ratio": ratio(row, first) if ran and first.seconds else "",
        "temporaries": row.temporaries if ran else "",
        "peak": row.peak if ran else "",
        "compile_seconds": row.compile_seconds if ran else "",
        "runs": row.runs if ran else "",
        "predicted": row.predicted,
        "estimated": row.estimated,
        "note": row.note,
    }
