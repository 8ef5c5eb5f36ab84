"""From MicroAdam to Adam: the second moment of the means of groups of m examples, on digits.

m = 1 is MicroAdam, m = B is Adam, and what lies between is `rows_per_example=m`. Each m has its own
learning rate, chosen by other seeds than those that compare. With

    python -m tools.experiments.m_sweep
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tools.experiments.attribution.digits import Examples, shuffled
from tools.experiments.intervals import difference

BATCH_SIZE, HIDDEN, TRAINING = 64, 64, 1400
GROUPS = (1, 2, 4, 8, 16, 32, 64)
RATES = tuple(float(rate) for rate in 8e-3 * 2.0 ** np.arange(7))
TUNING = (100, 101, 102, 103)
"""Seeds that choose learning rates, and compare nothing."""


def digits() -> tuple[Examples, Examples]:
    """For training and held out, the same in each run."""
    x, y = shuffled(0)
    return (x[:TRAINING], y[:TRAINING]), (x[TRAINING:], y[TRAINING:])


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean cross entropy of an MLP."""
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = h @ params["w2"] + params["b2"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))


def initial(seed: int) -> Any:
    """The parameters at first."""
    keys = jax.random.split(jax.random.key(seed))
    w1 = jax.random.normal(keys[0], (64, HIDDEN)) / 8
    w2 = jax.random.normal(keys[1], (HIDDEN, 10)) / HIDDEN**0.5
    return {"w1": w1, "b1": jnp.zeros(HIDDEN), "w2": w2, "b2": jnp.zeros(10)}


def batches(data: Examples, seed: int, steps: int) -> Iterator[Examples]:
    """The same for each m, so that runs are paired."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        taken = rng.choice(len(data[1]), BATCH_SIZE, replace=False)
        yield data[0][taken], data[1][taken]


class Runs:
    """Training by groups of m, compiled once for all learning rates and seeds."""

    def __init__(self, m: int, steps: int) -> None:
        self._steps, (self._data, self._held_out) = steps, digits()
        self._optimizer = optax.inject_hyperparams(ho.micro_adam)(learning_rate=0.0, b2=0.99)
        self._step = hs.train_step(loss, self._optimizer, batch_argnums=(1, 2), rows_per_example=m)
        self._loss = jax.jit(loss)

    def losses(self, rate: float, seed: int) -> tuple[float, float]:
        """At the end, of what was trained on and of what was held out."""
        params = initial(seed)
        state: Any = self._optimizer.init(params)
        state.hyperparams["learning_rate"] = jnp.float32(rate)
        for x, y in batches(self._data, seed, self._steps):
            params, state, _ = self._step(params, state, x, y)
        trained, held_out = (self._loss(params, *data) for data in (self._data, self._held_out))
        return float(trained), float(held_out)

    def best_rate(self, seeds: Sequence[int]) -> float:
        """That of the lowest loss of what was trained on."""
        means = {r: np.mean([self.losses(r, seed)[0] for seed in seeds]) for r in RATES}
        return min(means, key=lambda rate: np.nan_to_num(means[rate], nan=np.inf))


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains all runs and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=20)
    asked = parser.parse_args(arguments)
    seeds, first = range(asked.seeds), np.zeros(0)
    print("| m | learning rate | training loss | less that of m = 1 | held-out loss | less that |")
    print("|---|---|---|---|---|---|")
    for m in GROUPS:
        runs = Runs(m, asked.steps)
        rate = runs.best_rate(TUNING)
        found = np.array([runs.losses(rate, seed) for seed in seeds])
        first = found if m == GROUPS[0] else first
        less = ["" if m == GROUPS[0] else difference(column) for column in (found - first).T]
        trained, held_out = found.mean(0)
        each = f"{trained:.4f} | {less[0]} | {held_out:.4f} | {less[1]}"
        print(f"| {m} | {rate:.3g} | {each} |", flush=True)


if __name__ == "__main__":
    main()
