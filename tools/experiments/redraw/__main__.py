"""All figures and tables, from the CSV files alone; and the tables in the pages of docs/findings.

python -m tools.experiments.redraw [--runs FOLDER] [--out FOLDER] [--kind svg]

The pages are filled where --runs is not given: they are of the runs that the findings rest on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tools.experiments.paired.claims import compared
from tools.experiments.paired.records import MEASURED, rows_of
from tools.experiments.redraw import (
    batch_sizes,
    critical_batch_size,
    language_model,
    moments,
    pages,
    sweeps,
)

COMMAND = "tools.experiments.all --out FOLDER"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables, and draws what there are runs of."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="folder of other CSV files")
    parser.add_argument("--out", type=Path, default=pages.FIGURES)
    parser.add_argument("--kind", choices=("svg", "png"), default="svg")
    asked = parser.parse_args(arguments)
    runs = asked.runs or MEASURED
    if not list(runs.glob("*.csv")):
        parser.error(f"{runs} has no CSV files; make them with python -m {COMMAND}")
    for name, table in pages.TABLES.items():
        print(f"\n{name}\n\n{table(runs)}")
    draw_all(runs, asked.out, asked.kind)
    if asked.runs is None:
        pages.fill_all(runs)


def draw_all(runs: Path, out: Path, kind: str) -> None:
    """A file for each figure that there are runs of."""
    if made := pages.records(runs, "language_model"):
        language_model.draw_all(made, compared(made), out, kind)
        batch_sizes.draw_all(made, out, kind)
    for file in ("sweeps", "updates"):
        sweeps.draw_all(pages.records(runs, file), file, out, kind)
    if made := pages.records(runs, "synthetic"):
        sweeps.draw_synthetic(made, out / f"synthetic.{kind}")
    if rows := rows_of(runs / "critical_batch_size.csv"):
        critical_batch_size.draw(rows, out / f"critical_batch_size.{kind}")
    moments.draw_all(runs, out, kind)


if __name__ == "__main__":
    main()
