"""Sophia and K-FAC beside SGD, Adam and MicroAdam: digits, each with its own best learning rate.

python -m tools.bench.curvature.training [--steps 200] [--seeds 3]

Loss on all training digits, after as many steps of each. Curvature is of drawn labels, every tenth
step, which costs Sophia and K-FAC a tenth of the backward passes more.
"""

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from sklearn.datasets import load_digits  # pyright: ignore

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tools.models.layers import Keys

BATCH, WIDTH, EVERY = 128, 64, 10
METHODS: dict[str, tuple[Callable[[float], Any], Any]] = {
    "SGD, momentum": (lambda rate: optax.sgd(rate, 0.9), None),
    "Adam": (optax.adam, None),
    "MicroAdam": (ho.micro_adam, None),
    "Sophia": (ho.sophia, hs.second_moment()),
    "K-FAC": (ho.kfac, hs.kronecker_factors()),
}
RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]


def logits_of(p: Any, x: Array) -> Array:
    for layer in p[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ p[-1]["w"] + p[-1]["b"]


def loss(p: Any, x: Array, y: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(p, x), y).mean()


def sampled(p: Any, x: Array, key: Array) -> Array:
    return loss(p, x, hs.curvature.sampled_labels(key, logits_of(p, x)))


def initial(seed: int) -> Any:
    keys, sizes = Keys(), [64, WIDTH, WIDTH, 10]
    for _ in range(10 * seed):
        keys()
    return [{"w": keys.dense(i, o), "b": jnp.zeros(o)} for i, o in pairwise(sizes)]


def trained(name: str, rate: float, seed: int, steps: int, x: Array, y: Array) -> float:
    """The loss on all digits behind the last step."""
    make, statistic = METHODS[name]
    optimizer = make(rate)
    step = hs.train_step(loss, optimizer, batch_argnums=(1, 2))
    order = np.random.default_rng(seed)
    params = initial(seed)
    state, key = optimizer.init(params), jax.random.key(seed)
    told = None if statistic is None else telling(statistic)
    for i in range(steps):
        rows = order.choice(len(x), BATCH, replace=False)
        if told is not None and i % EVERY == 0:
            state = told(state, params, x[rows], jax.random.fold_in(key, i))
        params, state, _ = step(params, state, x[rows], y[rows])
    return float(loss(params, x, y))


def telling(statistic: Any) -> Callable[..., Any]:
    f = hs.grad(sampled, batch_argnums=1, statistics=statistic)
    return jax.jit(lambda state, p, x, key: ho.with_curvature(state, f(p, x, key)[1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    digits: Any = load_digits()
    x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    for name in METHODS:
        found = {
            rate: [trained(name, rate, s, options.steps, x, y) for s in range(options.seeds)]
            for rate in RATES
        }
        rate = min(found, key=lambda r: np.nan_to_num(np.mean(found[r]), nan=np.inf))
        shown = " ".join(f"{each:.4f}" for each in found[rate])
        print(
            f"{name:14} learning rate {rate:<6} loss {np.mean(found[rate]):.4f}  ({shown})",
            flush=True,
        )


if __name__ == "__main__":
    main()
