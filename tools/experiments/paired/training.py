"""One run of the language model: its steps in a `lax.scan` for each part whose mean loss is kept.

So Python has work once a part and not once a step, and the batches are gathered where they are
used. The losses are bit for bit those of a loop over `hs.train_step`.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hlo_surgery as hs
from tools.experiments.paired.records import Record
from tools.experiments.paired.variants import ALL
from tools.experiments.training import model
from tools.experiments.training.data import Text
from tools.experiments.training.loop import evaluate
from tools.experiments.training.methods import DECAY, WARMUP
from tools.experiments.training.model import Size

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
