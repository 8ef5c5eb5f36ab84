"""The tables in the pages of `docs/findings`, written from the CSV files between two comments:

<!-- table: NAME --> and <!-- end -->

Above a table are the figures that its runs are drawn in, where there are any.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tools.experiments.paired import groups, synthetic
from tools.experiments.paired.claims import BySeed, compared
from tools.experiments.paired.records import VERSIONS, Record, read_csv, rows_of
from tools.experiments.paired.variants import SWEEPS
from tools.experiments.redraw import (
    batch_sizes,
    critical_batch_size,
    moments,
    sweeps,
    tables,
    verdicts,
)

RUNS = ("language_model", "sweeps", "updates", "synthetic", "groups", "other_processor")
MEASURED = ("critical_batch_size", "moments", "sign_snr", "sign_opposed")
NONE = "(not run yet)"
Table = Callable[[Path], str]


def records(folder: Path, name: str) -> list[Record]:
    """The runs in one of the files, without their versions."""
    return [run.record for run in read_csv(folder / f"{name}.csv")]


def _language_model(of: Callable[[Sequence[Record], dict[str, BySeed]], str], folder: Path) -> str:
    made = records(folder, "language_model")
    return of(made, compared(made)) if made else NONE


def _runs(name: str, of: Callable[[Sequence[Record]], str], folder: Path) -> str:
    made = records(folder, name)
    return of(made) if made else NONE


def _synthetic(made: Sequence[Record]) -> str:
    return synthetic.table(*synthetic.by_method(made))


def _sweep(name: str, folder: Path) -> str:
    return sweeps.table(records(folder, SWEEPS[name].file), name)


def _replicates(folder: Path) -> str:
    other = records(folder, "other_processor")
    return verdicts.replicates(records(folder, "language_model"), other) if other else NONE


def versions(folder: Path) -> str:
    """What each file has, and of which versions."""
    lines = ["| file | lines | jax | hlo-surgery | commit |", "|---|---|---|---|---|"]
    for name in RUNS:
        ran = [run.versions for run in read_csv(folder / f"{name}.csv")]
        for each in dict.fromkeys(ran):
            said = dict(zip(VERSIONS, each, strict=True))
            of = " | ".join(said[kind] for kind in VERSIONS)
            lines.append(f"| {name}.csv | {ran.count(each)} | {of} |")
    for name in MEASURED:
        commits = [row["commit"] for row in rows_of(folder / f"{name}.csv")]
        each = dict.fromkeys(commits)
        lines += [f"| {name}.csv | {commits.count(one)} | | | {one} |" for one in each]
    return "\n".join(lines)


TABLES: dict[str, Table] = {
    "versions": versions,
    "replicates": _replicates,
    "verdicts": partial(_language_model, verdicts.verdicts),
    "contenders": partial(_language_model, lambda made, found: tables.contenders(found)),
    "tuning": partial(_language_model, lambda made, found: tables.tuning(made)),
    "claims": partial(_language_model, lambda made, found: tables.claims(found)),
    "steadiness": partial(_language_model, lambda made, found: tables.steadiness(found)),
    "batch_sizes": partial(_runs, "language_model", batch_sizes.table),
    "synthetic": partial(_runs, "synthetic", _synthetic),
    "groups": partial(_runs, "groups", groups.table),
    "critical_batch_size": lambda folder: critical_batch_size.table(
        rows_of(folder / "critical_batch_size.csv")
    ),
    "moments": lambda folder: moments.table(rows_of(folder / "moments.csv")),
    "sign_opposed": lambda folder: moments.opposed_table(rows_of(folder / "sign_opposed.csv")),
    **{f"sweep_{name}": partial(_sweep, name) for name in SWEEPS},
}


FIGURES = Path(__file__).parents[1] / "figures"
FINDINGS = Path(__file__).parents[3] / "docs" / "findings"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LEVELS = "Held-out losses by level, and differences: filled where told from none"
DRAWN = {
    **{f"sweep_{name}": {f"sweep_{name}": LEVELS} for name in SWEEPS},
    "critical_batch_size": {
        "critical_batch_size": "Noise scales by kind of layer along training, and over that of all"
    },
    "batch_sizes": {
        "batch_sizes": "Training losses against samples by batch size, and differences from B = 16",
        "batch_sizes_clipped": "The same, clipped",
        "batch_sizes_quarter": "Training losses by batch size, at a quarter of the rates",
        "batch_sizes_clipped_quarter": "The same, clipped, at a quarter of the rates",
    },
}
"""By table the figures and what they show."""


def fill_all(runs: Path, pages: Path = FINDINGS) -> None:
    """All pages of a folder, from a folder of CSV files and the figures that are drawn."""
    for page in sorted(pages.glob("*.md")):
        page.write_text(filled(page.read_text(), runs))


def filled(page: str, runs: Path) -> str:
    """The page with its tables made anew. Raises KeyError for one that there is not."""

    def made(found: re.Match[str]) -> str:
        parts = [*_figures(found[2]), TABLES[found[2]](runs)]
        return found[1] + "\n" + "\n\n".join(parts) + "\n\n" + found[3]

    return BLOCK.sub(made, page)


def _figures(table: str) -> list[str]:
    """Links to those that are drawn, as from a page."""
    drawn = {name: text for name, text in DRAWN.get(table, {}).items() if _is_drawn(name)}
    return [
        f"![{text}](../../tools/experiments/figures/{name}.svg)" for name, text in drawn.items()
    ]


def _is_drawn(name: str) -> bool:
    return (FIGURES / f"{name}.svg").exists()
