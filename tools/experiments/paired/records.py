"""Runs as CSV: what was run, by which versions, and how it ended."""

import csv
import io
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import jax

import hlo_surgery
from hlo_surgery.dumps import write_atomically

MEASURED = Path(__file__).parent.parent / "measured"
"""The files that the findings rest on."""
VERSIONS = ("jax", "hlo_surgery", "commit")


@dataclass(frozen=True)
class Record:
    """One run. `loss`: at its end, infinite where it diverged; `curve`: mean training losses of
    equal parts of it, if they were kept.
    """

    method: str
    learning_rate: float
    batch_size: int
    seed: int
    steps: int
    loss: float
    curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class Ran:
    """A run, and the versions that made it, by `VERSIONS`."""

    record: Record
    versions: tuple[str, ...]


def ran(record: Record) -> Ran:
    """A run of these versions."""
    return Ran(record, (jax.__version__, hlo_surgery.__version__, commit()))


def write_csv(file: Path, runs: Sequence[Ran]) -> None:
    """A line for each run, in an order of their own, whichever ended first; a file is replaced
    whole, so that a killed process leaves one.
    """
    names = [field.name for field in fields(Record)]
    rows: list[tuple[Any, ...]] = []
    for run in sorted(runs, key=_place):
        curve = " ".join(repr(float(part)) for part in run.record.curve)
        rows.append((*{**asdict(run.record), "curve": curve}.values(), *run.versions))
    write_rows(file, [*names, *VERSIONS], rows)


Row = Mapping[str, str]


def rows_of(file: Path) -> list[Row]:
    """The lines of a CSV file by their columns' names; none where there is no file."""
    if not file.exists():
        return []
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def write_rows(file: Path, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """A CSV file, replaced whole."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([names, *rows])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.getvalue().encode())


def _place(run: Ran) -> tuple[object, ...]:
    record = run.record
    return record.method, record.batch_size, record.seed, record.learning_rate


def read_csv(file: Path) -> list[Ran]:
    """The runs in a file that was written so; none where there is no file."""
    return [_read(row) for row in rows_of(file)]


def _read(row: Row) -> Ran:
    record = Record(
        row["method"],
        float(row["learning_rate"]),
        int(row["batch_size"]),
        int(row["seed"]),
        int(row["steps"]),
        float(row["loss"]),
        tuple(map(float, row["curve"].split())),
    )
    return Ran(record, tuple(row[version] for version in VERSIONS))


@cache
def commit() -> str:
    """The checkout's, marked where code differs from it; what runs write does not count."""
    described = _git("describe", "--always", "--abbrev=12")
    written = [f":(top,exclude)*.{kind}" for kind in ("csv", "md", "png", "svg")]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *written)
    return (described or "no checkout") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    """What git says, nothing where it fails."""
    said = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip()
