"""Runs as CSV: what was run, by which versions, and how it ended."""

import csv
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import jax

import hlo_surgery

VERSIONS = ("jax", "hlo_surgery", "commit")


@dataclass(frozen=True)
class Record:
    """One run. `loss`: at its end, infinite where it diverged."""

    method: str
    learning_rate: float
    seed: int
    steps: int
    loss: float


def write_csv(file: Path, records: Sequence[Record]) -> None:
    """A line for each run, with the versions that ran it."""
    versions = dict(
        zip(VERSIONS, (jax.__version__, hlo_surgery.__version__, commit()), strict=True)
    )
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Record)] + [*VERSIONS])
        writer.writeheader()
        writer.writerows(asdict(record) | versions for record in records)


def read_csv(file: Path) -> list[Record]:
    """The runs in a file that was written so."""
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [
        Record(
            row["method"],
            float(row["learning_rate"]),
            int(row["seed"]),
            int(row["steps"]),
            float(row["loss"]),
        )
        for row in rows
    ]


def commit() -> str:
    """The checkout's, marked where files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "no checkout"
