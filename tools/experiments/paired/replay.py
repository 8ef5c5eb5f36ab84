"""Kept runs made again: whether the code of today gives the same lines, bit for bit.

    python -m tools.experiments.paired.replay [FILE ...] [--workers 2]

makes one run of each method, batch size and commit in each file, says for each whether its loss and
curve are the same, and ends with exit status 1 where one is not. So results of several commits can
be told to be those of one, without the hours that all of them take. On another kind of processor,
or other versions of JAX, no line need be the same.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.experiments.paired.records import MEASURED, Ran, Record, commit, read_csv
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training.model import SIZES, Size

FILES = (MEASURED / "language_model.csv", MEASURED / "sweeps.csv")


def one_of_each(runs: Sequence[Ran]) -> list[Record]:
    """The first record of each method and batch size by each of the versions."""
    first: dict[tuple[object, ...], Record] = {}
    for run in runs:
        record = run.record
        first.setdefault((record.method, record.batch_size, run.versions), record)
    return list(first.values())


def made_again(records: Sequence[Record], size: Size, workers: int) -> list[Record]:
    """Runs like those of the records, made now, in the order of these."""
    wanted = [Wanted(r.method, r.learning_rate, r.seed, r.batch_size, size) for r in records]
    with TemporaryDirectory() as folder:
        return Runs(Path(folder) / "again.csv", workers).made(wanted, "made again")


def said_of(kept: Record, made: Record) -> str:
    """One line on one run."""
    name = f"{kept.method}, B = {kept.batch_size}, seed {kept.seed}"
    if kept == made:
        return f"{name}: the same bits, loss {kept.loss!r}"
    parts = sum(one == other for one, other in zip(kept.curve, made.curve, strict=True))
    return (
        f"{name}: ANOTHER, loss {kept.loss!r} kept and {made.loss!r} made; "
        f"{parts} of {len(kept.curve)} parts of the curve are the same"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status 1 where a run is another than its line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, default=FILES, help="CSV files of runs")
    parser.add_argument("--size", choices=("small", "tiny"), default="small", help="of the model")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(arguments)
    others = 0
    for file in asked.files:
        kept = one_of_each(read_csv(file))
        made = made_again(kept, SIZES[asked.size], asked.workers)
        print(f"{file.name}, made again at {commit()}")
        print(*map(said_of, kept, made), sep="\n")
        others += sum(one != other for one, other in zip(kept, made, strict=True))
    sys.exit(min(others, 1))


if __name__ == "__main__":
    main()
