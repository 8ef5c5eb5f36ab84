"""Runs made by processes side by side, each with one thread, and kept in one CSV file.

One process writes; the others train. How many there are changes no bit: XLA splits sums by its
threads, and each process has one.
"""

import os
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.experiments.paired.contenders import BATCH_SIZE
from tools.experiments.paired.records import Record, ran, read_csv, write_csv
from tools.experiments.paired.training import Training
from tools.experiments.training import data
from tools.experiments.training.data import Text
from tools.experiments.training.model import SIZES, Size


@dataclass(frozen=True)
class Wanted:
    """A run: everything that it depends on but the code and the text."""

    name: str
    rate: float
    seed: int
    batch_size: int = BATCH_SIZE
    size: Size = SIZES["small"]

    def is_of(self, record: Record) -> bool:
        """Whether the record is this run's."""
        steps = self.size.steps(self.batch_size)
        own = (self.name, self.rate, self.seed, self.batch_size, steps)
        made = (record.method, record.learning_rate, record.seed, record.batch_size, record.steps)
        return own == made


class Runs:
    """All runs in a file, and the making of those that it lacks."""

    def __init__(self, file: Path, workers: int = 1) -> None:
        self._file, self._made = file, read_csv(file)
        # A fork of a process with XLA's threads would hang. What a process has compiled it keeps,
        # so that it lives as long as this; it begins when there is something to run.
        spawn = get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, spawn, initializer=_one_thread)

    @property
    def records(self) -> list[Record]:
        """All that are there."""
        return [run.record for run in self._made]

    def made(self, wanted: Iterable[Wanted], title: str = "runs") -> list[Record]:
        """Each run's record, in the order asked for; those that are not there are made."""
        asked = list(dict.fromkeys(wanted))
        missing = [one for one in asked if self._found(one) is None]
        for record in _trained(missing, self._pool, title):
            self._made.append(ran(record))
            write_csv(self._file, self._made)
        found = [self._found(one) for one in asked]
        return [record for record in found if record is not None]

    def _found(self, wanted: Wanted) -> Record | None:
        matching = (run.record for run in self._made if wanted.is_of(run.record))
        return next(matching, None)


def _trained(wanted: list[Wanted], pool: ProcessPoolExecutor, title: str) -> Iterator[Record]:
    """Records as they are done, begun in the order given, with a bar that shows the progress."""
    console = Console()
    if not wanted:
        return
    with Progress(console=console) as progress, _dropping(pool):
        task = progress.add_task(title, total=len(wanted))
        for done in as_completed([pool.submit(_train, one) for one in wanted]):
            record = done.result()
            rate = f"{record.learning_rate:.3g}"
            said = f"{record.method}, B = {record.batch_size}, lr {rate}, seed {record.seed}"
            console.print(f"{said}: {record.loss:.4f}", highlight=False)
            progress.advance(task)
            yield record


@contextmanager
def _dropping(pool: ProcessPoolExecutor) -> Generator[None]:
    """What is not begun when an error or Ctrl-C ends it is dropped."""
    try:
        yield
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


def _one_thread() -> None:
    """Before JAX makes its threads, which is when it is first used."""
    os.environ["NPROC"] = "1"


def _train(wanted: Wanted) -> Record:
    training = _training(wanted.name, wanted.size, wanted.batch_size)
    return training.record(wanted.rate, wanted.seed)


@cache
def _training(name: str, size: Size, batch_size: int) -> Training:
    return Training(name, _text(size), size, batch_size)


@cache
def _text(size: Size) -> Text:
    return data.load(None, size.L, size.V)
