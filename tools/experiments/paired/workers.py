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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress

import hlo_surgery as hs
from tools.experiments.paired.records import Record, ran, read_csv, write_csv
from tools.experiments.paired.variants import ALL, BATCH_SIZE
from tools.experiments.training import data, model
from tools.experiments.training.data import Text
from tools.experiments.training.loop import evaluate
from tools.experiments.training.methods import DECAY, WARMUP
from tools.experiments.training.model import SIZES, Size

PARTS = 64
"""Of a run, whose mean training losses are kept."""


class Training:
    """Runs of one contender at one batch size, compiled once for all rates and seeds."""

    def __init__(self, name: str, text: Text, size: Size, batch_size: int) -> None:
        self._name, self._text, self._size, self._batch = name, text, size, batch_size
        self._steps, self._contender = size.steps(batch_size), ALL[name]
        group = self._contender.group
        self._step = hs.train_step(model.loss, self._optimizer(0), rows_per_example=group)
        self._windows = jnp.asarray(text.train)
        self._part = jax.jit(self._traced, donate_argnums=0)

    def record(self, rate: float, seed: int) -> Record:
        """A run to its end."""
        params = model.init(self._size, seed)
        # Committed, as a part returns them: else the first part is compiled twice.
        state: Any = jax.device_put((params, self._optimizer(seed).init(params)), jax.devices()[0])
        curve: list[float] = []
        for steps in _parts(self._steps):
            given = self._given(steps, rate, seed)
            state, losses = self._part(state, self._windows, given)
            curve.append(round(float(np.asarray(losses, float).mean()), 6))
        loss = float(np.nan_to_num(evaluate(state[0], self._text), nan=np.inf))
        return Record(self._name, rate, self._batch, seed, self._steps, loss, tuple(curve))

    def _optimizer(self, seed: int) -> Any:
        """Of the seed only the state rests: the same updates are compiled for all."""
        made = optax.inject_hyperparams(self._contender.make, static_args="seed")
        return made(rate=0.0, weight_decay=0.0, seed=seed)

    def _given(self, steps: range, rate: float, seed: int) -> tuple[np.ndarray, ...]:
        """For each step of a part: places of its batch, learning rate and weight decay."""
        shares = _schedule(self._steps)[steps.start : steps.stop]
        decaying = self._contender.decays(shares, rate, self._batch)
        rates, decays = rate * shares, DECAY / self._steps * decaying
        places = self._text.places(steps, self._batch, seed)
        return places, rates.astype(np.float32), decays.astype(np.float32)

    def _traced(self, state: Any, windows: jax.Array, given: Any) -> tuple[Any, jax.Array]:
        """The state after the part, and the loss of each of its steps."""

        def step(state: Any, given: Any) -> tuple[Any, jax.Array]:
            (params, inner), (places, rate, decay) = state, given
            inner.hyperparams.update(rate=rate, weight_decay=decay)
            tokens = windows[places].astype(jnp.int32)
            *state, metrics = self._step(params, inner, tokens)
            return tuple(state), metrics["loss"]

        return jax.lax.scan(step, state, given)


def _parts(steps: int) -> Iterator[range]:
    """Ranges of steps, as equal as can be, none of them empty."""
    for part in np.array_split(np.arange(steps), min(PARTS, steps)):
        yield range(int(part[0]), int(part[-1]) + 1)


def _schedule(steps: int) -> np.ndarray:
    """The share of its peak that a rate has at each step."""
    warmup = max(1, round(WARMUP * steps))
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup, steps)
    return np.asarray(jax.vmap(shape)(jnp.arange(steps)), float)


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
