"""The paper's optimizers on the small language model, by pairs: runs of one seed start alike and
see the same batches.

    python -m tools.experiments.paired.language_model [--csv FILE] [--contenders NAME ...]
        [--seeds 16]

`DESIGN.md` says what is run and what is claimed of it, and was written first. Runs that are in the
file are not run again.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import hlo_surgery as hs
from tools.experiments.paired.records import Ran, Record, ran, read_csv, write_csv
from tools.experiments.training import data, model
from tools.experiments.training.data import Text
from tools.experiments.training.loop import evaluate
from tools.experiments.training.methods import (
    B1,
    B2,
    BASE_RATE,
    CLIP_NORMS,
    DECAY,
    METHODS,
    WARMUP,
)
from tools.experiments.training.model import SIZES, Size

BATCH_SIZE = 16
TUNING = (1001, 1002, 1003)
"""Seeds that choose learning rates, and compare nothing."""
PARTS = 64
"""Of a run, whose mean training losses are kept."""
CSV = Path(__file__).parent / "language_model.csv"


@dataclass(frozen=True)
class Contender:
    """A method, clipped or not. `centre`: the middle i of its rates, `BASE_RATE * 10**(i/4)`."""

    method: str
    centre: int
    clip_norm: float | None = None

    def rate(self, i: int) -> float:
        """The i-th learning rate from the centre."""
        return BASE_RATE * 10 ** (0.25 * (self.centre + i))

    def make(self, rate: Any, weight_decay: Any) -> Any:
        """Its optimizer at one rate and decay."""
        method = METHODS[self.method]
        betas = {name: {"b1": B1, "b2": B2}[name] for name in method.betas}
        clip = {"clip_norm": self.clip_norm} if self.clip_norm else {}
        return method.make(rate, **betas, **clip, weight_decay=weight_decay)


CLIPPED = CLIP_NORMS["small"]
# The centres are the best rates of earlier sweeps with one seed.
CONTENDERS = {
    "adam": Contender("adam", 4),
    "micro_adam": Contender("micro_adam", 5),
    "adam, clipped": Contender("adam", 3, CLIPPED),
    "micro_adam, clipped": Contender("micro_adam", 5, CLIPPED),
    "sign_ema": Contender("sign_ema", 1),
    "sign_sgd": Contender("sign_sgd", 4),
    "micro_sign_sgd": Contender("micro_sign_sgd", 5),
    "micro_adam_var": Contender("micro_adam_var", 5),
    "micro_adam_var, clipped": Contender("micro_adam_var", 5, CLIPPED),
    "micro_adam_msq, clipped": Contender("micro_adam_msq", 5, CLIPPED),
}


class Training:
    """Runs of one contender, compiled once for all rates and seeds."""

    def __init__(self, name: str, text: Text, size: Size, batch_size: int) -> None:
        self._name, self._text, self._size, self._batch = name, text, size, batch_size
        self._steps = size.steps(batch_size)
        made = optax.inject_hyperparams(CONTENDERS[name].make)
        self._optimizer = made(rate=0.0, weight_decay=0.0)
        self._step = hs.train_step(model.loss, self._optimizer)

    def record(self, rate: float, seed: int) -> Record:
        """A run to its end."""
        params = model.init(self._size, seed)
        state: Any = self._optimizer.init(params)
        losses: list[jax.Array] = []
        for number, share in enumerate(_schedule(self._steps)):
            state.hyperparams["rate"] = jnp.float32(rate * share)
            state.hyperparams["weight_decay"] = jnp.float32(DECAY / self._steps * share)
            tokens = self._text.batch(number, self._batch, seed)
            params, state, metrics = self._step(params, state, tokens)
            losses.append(metrics["loss"])
        parts = np.array_split(np.asarray(jax.device_get(losses), float), PARTS)
        curve = tuple(round(float(part.mean()), 6) for part in parts if len(part))
        final = float(np.nan_to_num(evaluate(params, self._text), nan=np.inf))
        return Record(self._name, rate, seed, self._steps, final, curve)


def _schedule(steps: int) -> list[float]:
    """The share of its peak that a rate has at each step."""
    warmup = max(1, round(WARMUP * steps))
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup, steps)
    return np.asarray(jax.vmap(shape)(jnp.arange(steps)), float).tolist()


class Runs:
    """All runs that were made, in a file, and those that are asked for."""

    def __init__(self, file: Path, text: Text, size: Size, batch_size: int) -> None:
        self._file, self._where = file, (text, size, batch_size)
        self._made = read_csv(file)
        self._training: dict[str, Training] = {}

    def loss(self, name: str, rate: float, seed: int) -> float:
        """At the end of a run, which is made if it is not there."""
        steps = self._where[1].steps(self._where[2])
        wanted = (name, rate, seed, steps)
        for made in (run.record for run in self._made):
            if (made.method, made.learning_rate, made.seed, made.steps) == wanted:
                return made.loss
        return self._run(name, rate, seed)

    def _run(self, name: str, rate: float, seed: int) -> float:
        if name not in self._training:
            self._training[name] = Training(name, *self._where)
        run: Ran = ran(self._training[name].record(rate, seed))
        self._made.append(run)
        write_csv(self._file, self._made)
        return run.record.loss


def tuned(runs: Runs, name: str) -> float:
    """The rate of the lowest mean of the tuning seeds: of five around the centre, and of those
    beyond while the best is at an edge.
    """
    contender = CONTENDERS[name]
    means: dict[int, float] = {}
    for i in _outwards(means):
        losses = [runs.loss(name, contender.rate(i), seed) for seed in TUNING]
        means[i] = float(np.mean(losses))
    return contender.rate(_best(means))


def _outwards(means: Mapping[int, float]) -> Iterator[int]:
    """Numbers of rates, each once those before it are in `means`."""
    yield from range(-2, 3)
    while (best := _best(means)) in (min(means), max(means)):
        yield best - 1 if best == min(means) else best + 1


def _best(means: Mapping[int, float]) -> int:
    return min(means, key=lambda i: means[i])


def compare(runs: Runs, names: Sequence[str], seeds: int, console: Console) -> None:
    """Tune each, then run each on every fresh seed; a seed of all is done before the next."""
    rates: dict[str, float] = {}
    for name in names:
        rates[name] = tuned(runs, name)
        console.print(f"{name}: learning rate {rates[name]:.4g}", highlight=False)
    for seed, name in itertools.product(range(seeds), names):
        found = runs.loss(name, rates[name], seed)
        console.print(f"seed {seed}, {name}: {found:.4f}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the runs that are not there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=CSV, help="all runs, a line each")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=16)
    asked = parser.parse_args(arguments)
    size = SIZES["small"]
    text = data.load(None, size.L, size.V)
    compare(Runs(asked.csv, text, size, BATCH_SIZE), asked.contenders, asked.seeds, Console())


if __name__ == "__main__":
    main()
