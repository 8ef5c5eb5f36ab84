"""All figures, and the tables of the paired runs, from the CSV files alone.

python -m tools.experiments.redraw [--out FOLDER] [--kind svg]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tools.experiments.paired import groups
from tools.experiments.paired.found import compared
from tools.experiments.paired.records import MEASURED, VERSIONS, Ran, read_csv
from tools.experiments.paired.synthetic import by_method, table
from tools.experiments.redraw import batch_sizes, costs, language_model, moments, synthetic, tables

COMMAND = "tools.experiments.all --out FOLDER"
FIGURES = MEASURED.parent / "figures"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables, and draws what there are runs of."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, default=MEASURED, help="folder of their CSV files")
    parser.add_argument("--out", type=Path, default=FIGURES)
    parser.add_argument("--kind", choices=("svg", "png"), default="svg")
    asked = parser.parse_args(arguments)
    if not list(asked.runs.glob("*.csv")):
        parser.error(f"{asked.runs} has no CSV files; make them with python -m {COMMAND}")
    of_synthetic = read_csv(asked.runs / "synthetic.csv")
    of_language_model = read_csv(asked.runs / "language_model.csv")
    if of_synthetic:
        _synthetic(of_synthetic, asked.out / f"synthetic.{asked.kind}")
    if of_groups := read_csv(asked.runs / "groups.csv"):
        _say("Groups of m examples", of_groups)
        print(groups.table([run.record for run in of_groups]))
    if of_language_model:
        _language_model(of_language_model, asked.out, asked.kind)
    moments.draw_all(asked.runs, asked.out, asked.kind)
    costs.draw_all(asked.out, asked.kind)


def _synthetic(runs: Sequence[Ran], file: Path) -> None:
    records = [run.record for run in runs]
    _say("The synthetic problem", runs)
    print(table(*by_method(records)))
    synthetic.draw(records, file)


def _language_model(runs: Sequence[Ran], out: Path, kind: str) -> None:
    records = [run.record for run in runs]
    found = compared(records)
    _say("The language model", runs)
    print(tables.all_tables(records, found), batch_sizes.table(records), sep="\n\n")
    language_model.draw_all(records, found, out, kind)
    batch_sizes.draw_all(records, out, kind)


def _say(title: str, runs: Sequence[Ran]) -> None:
    print(f"\n{title}, {len(runs)} runs:")
    for versions in sorted({run.versions for run in runs}):
        print(", ".join(map(" ".join, zip(VERSIONS, versions, strict=True))))
    print()


if __name__ == "__main__":
    main()
