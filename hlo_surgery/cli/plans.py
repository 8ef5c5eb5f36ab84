"""Plans on a terminal: the widest form that fits, a table of all columns, of few, or no table.

What a run returned, in a few numbers an output.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hlo_surgery.cli.output import (
    UNBOUNDED,
    console,
    made_table,
    print_table,
    print_text,
    printable,
)
from hlo_surgery.module import Port
from hlo_surgery.passes.strategies.gradient_costs import SitePlan
from hlo_surgery.plan import (
    COLUMNS,
    OutputPlan,
    Plan,
    bare,
    plan_row,
    predicted_text,
    quantity,
    site_text,
)


def print_plan(plan: Plan) -> None:
    """What is done for each gradient, its sites with their source lines."""
    shown = console()
    shown.print(Text(printable(plan.head()), style="italic"))
    for each in plan.given():
        print_text(each, "yellow")
    fitting = [table for table in (_wide(plan), _narrow(plan)) if _width(table) <= shown.width]
    if fitting:
        shown.print(fitting[0])
    else:
        _print_blocks(plan, shown)
    if plan.others:
        print_text(plan.taken())
    if plan.unnamed:
        print_text(plan.beside_batch(), "yellow")
    for each in plan.totals():
        print_text(each)


def _width(table: Table) -> int:
    """What a table takes without a cell that is folded."""
    return Console(width=UNBOUNDED).measure(table).maximum


def _wide(plan: Plan) -> Table:
    """A column for everything."""
    statistics = list(plan.outputs[0].strategies)
    columns = ("gradient", *statistics, *COLUMNS)
    return made_table("", columns, (plan_row(o, statistics) for o in plan.outputs))


def _narrow(plan: Plan) -> Table:
    """A column for the statistics together, and one for all of a contraction."""
    columns = ("gradient", "statistics", "sites", "predicted")
    rows = (
        [
            output.name,
            _stacked(_statistics(output)),
            _stacked(_sites(output)),
            _stacked(_predicted(output)),
        ]
        for output in plan.outputs
    )
    table = made_table("", columns, rows)
    table.box, table.show_edge, table.pad_edge = box.SIMPLE, False, False
    return table


def _stacked(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def _predicted(output: OutputPlan) -> Iterator[str]:
    yield from map(predicted_text, output.predicted.items())


def _statistics(output: OutputPlan) -> Iterator[str]:
    yield from (f"{name}: {strategy}" for name, strategy in output.strategies.items())


def _sites(output: OutputPlan) -> Iterator[str]:
    for site in output.sites:
        yield bare(site_text(site))
        yield f"  {_cost(site)}"
    if output.tail:
        yield f"tail {' '.join(map(bare, output.tail))}"
    if output.note:
        yield output.note


def _cost(site: SitePlan) -> str:
    return f"{quantity(site.flops)}FLOP, {quantity(site.bytes)}B"


def _print_blocks(plan: Plan, shown: Console) -> None:
    """Each gradient's name, and below it what is said of it, line by line."""
    for output in plan.outputs:
        shown.print(Text(printable(output.name), style="bold cyan"), overflow="fold")
        predicted = [f"predicted {cost}" for cost in _predicted(output)]
        for line in [*_statistics(output), *_sites(output), *predicted]:
            indent = 2 + len(line) - len(line.lstrip())
            said = Text(printable(line.lstrip()))
            shown.print(Padding(said, (0, 0, 0, indent), expand=False), overflow="fold")


def summarise(
    ports: Sequence[Port], arrays: Sequence[np.ndarray[Any, Any]]
) -> list[dict[str, Any]]:
    """Each output's name, shape, dtype, least, mean and largest finite entry (or magnitude)."""
    return [
        {"name": port.name, "shape": port.shape, "dtype": str(port.dtype)} | _extremes(array)
        for port, array in zip(ports, arrays, strict=True)
    ]


def _extremes(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    wide = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    least, mean, most = (
        float(f(finite)) if finite.size else None for f in (np.min, np.mean, np.max)
    )
    return {
        "least": least,
        "mean": mean,
        "largest": most,
        "not_finite": int(wide.size - finite.size),
    }


def print_summaries(summaries: Sequence[dict[str, Any]]) -> None:
    """The summaries as a table."""
    columns = ("name", "shape", "dtype", "least", "mean", "largest", "not finite")
    print_table(
        "outputs",
        columns,
        ([_cell(row[c.replace(" ", "_")]) for c in columns] for row in summaries),
    )


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(str, value)) or "scalar"
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
