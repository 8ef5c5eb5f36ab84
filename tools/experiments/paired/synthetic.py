"""Softmax regression whose noise is known: classes by Zipf's law, features with heavy tails.

    python -m tools.experiments.paired.synthetic [--seeds 16] [--steps 1000] [--csv FILE]

No example comes twice, and the best loss there can be is known, so that what is left is the
optimizer's. The design is fixed beforehand: each method has the same five learning rates around the
best of one wide grid, chosen by the mean of three seeds; the methods are compared on seeds that
chose nothing, by pairs, with Holm's correction over all comparisons with Adam.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import hlo_surgery as hs
from tools.experiments.intervals import interval
from tools.experiments.paired.claims import Difference, holm, paired
from tools.experiments.paired.records import Ran, Record, ran, write_csv
from tools.experiments.training.methods import ADAMS, METHODS, SIGNS

FEATURES, CLASSES, BATCH_SIZE, EVALUATED = 32, 64, 16, 1 << 14
DEGREES = 3.0
"""Of freedom, of Student's t: the fourth moment of a feature is infinite."""
SEARCH = tuple(4.0**i for i in range(-8, 0))
"""A wide grid, on one seed; then five rates by twos around its best."""
SEARCHING, TUNING = 1000, (1001, 1002, 1003)
# Where no gradient is clipped, MicroAdamMSQ has no step that is finite for long.
COMPARED = (*ADAMS[:-1], *SIGNS)

Params = dict[str, Array]
Examples = tuple[Array, Array]


def truth() -> Params:
    """The parameters that make the labels; the bias is Zipf's law."""
    weights = jax.random.normal(jax.random.key(7), (FEATURES, CLASSES)) / FEATURES**0.5
    return {"w": weights, "b": -jnp.log(jnp.arange(1.0, CLASSES + 1))}


def drawn(key: Array, count: int = BATCH_SIZE) -> Examples:
    """Features [B, D] of variance 1, and labels [B]."""
    ours, theirs = jax.random.split(key)
    spread = (DEGREES / (DEGREES - 2)) ** 0.5
    x = jax.random.t(ours, DEGREES, (count, FEATURES)) / spread
    return x, jax.random.categorical(theirs, logits(truth(), x))


def logits(params: Params, x: Array) -> Array:
    """[B, C]."""
    return x @ params["w"] + params["b"]


def loss(params: Params, x: Array, y: Array) -> Array:
    """The mean cross entropy."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y))


def held_out() -> Examples:
    """The same for all runs."""
    return drawn(jax.random.key(8), EVALUATED)


def excess(params: Params) -> Array:
    """The loss beyond that of the parameters which made the labels."""
    return loss(params, *held_out()) - loss(truth(), *held_out())


class Runs:
    """Training by one method, compiled once for all rates and seeds."""

    def __init__(self, method: str, steps: int, group: int | None = None) -> None:
        """With a group, examples are taken so many at a time, and the runs are named after it."""

        def at(rate: Any) -> Any:
            return METHODS[method].make(rate)

        self._steps = steps
        self._method = method if group is None else f"{method}, m = {group}"
        self._optimizer = optax.inject_hyperparams(at)(rate=0.0)
        self._step = hs.train_step(
            loss, self._optimizer, batch_argnums=(1, 2), rows_per_example=group or 1
        )
        self._excess = jax.jit(self._traced)
        self.runs: list[Ran] = []

    def loss(self, rate: float, seed: int) -> float:
        """The excess loss at the end; infinite where it is no number."""
        found = float(np.nan_to_num(self._excess(rate, jax.random.key(seed)), nan=np.inf))
        record = Record(self._method, rate, BATCH_SIZE, seed, self._steps, found)
        self.runs.append(ran(record))
        return found

    def _traced(self, rate: Array, key: Array) -> Array:
        """The excess loss after all steps, whose rate falls linearly to zero."""

        def step(state: Any, given: Any) -> tuple[Any, None]:
            (params, inner), (fading, key) = state, given
            inner.hyperparams["rate"] = fading
            return self._step(params, inner, *drawn(key))[:2], None

        params = jax.tree.map(jnp.zeros_like, truth())
        fading = rate * (1 - jnp.arange(self._steps) / self._steps)
        given = fading, jax.random.split(key, self._steps)
        (params, _), _ = jax.lax.scan(step, (params, self._optimizer.init(params)), given)
        return excess(params)

    def best(self, rates: Sequence[float], seeds: Sequence[int]) -> float:
        """The rate of the lowest mean."""
        return min(rates, key=lambda r: np.mean([self.loss(r, seed) for seed in seeds]))

    def tuned(self) -> float:
        """The rate that is compared."""
        centre = self.best(SEARCH, [SEARCHING])
        return self.best([centre * 2.0**i for i in range(-2, 3)], TUNING)


def table(rates: dict[str, float], found: dict[str, list[float]]) -> str:
    """Markdown: each method beside Adam."""
    against: dict[str, Difference] = {
        method: paired(losses, found["adam"])
        for method, losses in found.items()
        if method != "adam"
    }
    told = holm(against)
    lines = [
        "| method | learning rate | excess loss | less Adam's | told apart |",
        "|---|---|---|---|---|",
    ]
    for method, losses in found.items():
        beside = (
            f"{against[method]} | {'yes' if told[method] else 'no'}" if method in told else " | "
        )
        lines.append(
            f"| {METHODS[method].title} | {rates[method]:.3g} | {interval(losses, 4)} | {beside} |"
        )
    return "\n".join(lines)


def by_method(records: Sequence[Record]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Each method's rate that was compared, and its losses by seed."""
    fresh = [record for record in records if record.seed < SEARCHING]
    rates = {record.method: record.learning_rate for record in fresh}
    ordered = sorted(fresh, key=lambda record: record.seed)
    found = {m: [r.loss for r in ordered if r.method == m] for m in COMPARED if m in rates}
    return rates, found


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains all runs and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--csv", type=Path, help="all runs, a line each")
    asked = parser.parse_args(arguments)
    made: list[Ran] = []
    for method in COMPARED:
        runs = Runs(method, asked.steps)
        rate = runs.tuned()
        losses = [runs.loss(rate, seed) for seed in range(asked.seeds)]
        made += runs.runs
        print(f"{METHODS[method].title}: {interval(losses, 4)}", flush=True)
    print(table(*by_method([run.record for run in made])))
    if asked.csv:
        write_csv(asked.csv, made)


if __name__ == "__main__":
    main()
