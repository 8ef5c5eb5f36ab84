"""What a run leaves: a log of steps (JSONL) and a checkpoint, each replaced whole, never half."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

Row = dict[str, Any]


@dataclass
class Log:
    """`header` says what was run, each row is a step: "step", "samples", "loss", now and then
    "eval_loss" and more.
    """

    header: Row
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def finished(self) -> bool:
        return bool(self.rows) and (self.diverged or self.rows[-1]["step"] == self.header["steps"])

    @property
    def diverged(self) -> bool:
        return bool(self.rows) and not math.isfinite(self.rows[-1]["loss"])

    @property
    def final(self) -> float:
        """The held-out loss at the end, infinite where the run diverged."""
        return math.inf if self.diverged else self.rows[-1]["eval_loss"]

    def column(self, name: str) -> tuple[list[int], list[Any]]:
        """Samples seen, and the values under a name, of the rows that have it."""
        found = [row for row in self.rows if name in row]
        return [row["samples"] for row in found], [row[name] for row in found]


def read_log(folder: Path, header: Row) -> Log:
    """The log in a folder, empty where there is none. Raises ValueError where something else was
    run there.
    """
    file = folder / "log.jsonl"
    if not file.exists():
        return Log(header)
    found, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    if found != header:
        raise ValueError(
            f"{folder} is of another run: {found} instead of {header}; choose another --out"
        )
    return Log(header, rows)


def write_log(folder: Path, log: Log) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in (log.header, *log.rows))
    _replace(folder / "log.jsonl", lambda file: file.write(lines.encode()))


def save(folder: Path, step: int, state: Any) -> None:
    """The state after so many steps, a pytree of arrays."""
    leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    _replace(
        folder / "checkpoint.npz",
        lambda file: np.savez(file, allow_pickle=False, step=step, **leaves),
    )


def saved_step(folder: Path) -> int:
    """The step of the checkpoint, 0 where there is none."""
    file = folder / "checkpoint.npz"
    if not file.exists():
        return 0
    with np.load(file) as saved:
        return int(saved["step"])


def restore(folder: Path, state: Any) -> tuple[int, Any]:
    """Steps and state of the checkpoint, or 0 and the state given, which tells its structure."""
    if not (step := saved_step(folder)):
        return 0, state
    with np.load(folder / "checkpoint.npz") as saved:
        leaves = [saved[str(i)] for i in range(len(jax.tree.leaves(state)))]
        return step, jax.tree.unflatten(jax.tree.structure(state), leaves)


def _replace(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".new")
    with temporary.open("wb") as stream:
        write(stream)
    os.replace(temporary, file)
