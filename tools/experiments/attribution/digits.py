"""scikit-learn's digits, a network of one hidden layer, and training it without some examples."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn.datasets import load_digits

TRAINED, HELD_OUT = 1200, 200
HIDDEN, BATCH, RATE = 64, 100, 0.3
CHECKPOINTS, STEPS = 4, 120
"""So many steps of SGD before each checkpoint: 40 passes over the examples in all."""

Examples = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Digits:
    """Images [N, 64] with labels [N]: to train on, to ask with, and others."""

    train: Examples
    held_out: Examples
    rest: Examples


def shuffled(seed: int) -> Examples:
    """All of them, in an order at random."""
    found: Any = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int32)


def digits(seed: int) -> Digits:
    """Split at random."""
    x, y = shuffled(seed)
    ends = (TRAINED, TRAINED + HELD_OUT)
    return Digits(*zip(np.split(x, ends), np.split(y, ends), strict=True))


def logits(params: Any, x: Array) -> Array:
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def losses(params: Any, x: Any, y: Any) -> Array:
    """Cross-entropy of each example, [B]."""
    found = jax.nn.log_softmax(logits(params, x))
    return -jnp.take_along_axis(found, y[:, None], -1)[:, 0]


def loss(params: Any, x: Array, y: Array) -> Array:
    return losses(params, x, y).mean()


def initial(key: Array) -> Any:
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, HIDDEN)) / 8,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 10)) / 8,
        "b2": jnp.zeros(10),
    }


def trained(data: Examples, seed: int, kept: np.ndarray | None = None) -> Any:
    """The parameters at each checkpoint, [CHECKPOINTS, ...], by SGD at one learning rate.

    `kept`: [R, N], which examples count, for R runs of the same start and the same batches, of
    which those left out are missing; then [R, CHECKPOINTS, ...].
    """
    steps = CHECKPOINTS * STEPS
    rng = np.random.default_rng([1, seed])
    passes = [rng.permutation(TRAINED) for _ in range(-(-steps * BATCH // TRAINED))]
    batches = np.concatenate(passes)[: steps * BATCH].reshape(CHECKPOINTS, STEPS, BATCH)
    start = initial(jax.random.key(seed))
    if kept is None:
        return _run(start, *data, batches, np.ones(TRAINED, np.float32))
    runs = jax.vmap(_run, (None, None, None, None, 0))
    return runs(start, *data, batches, kept.astype(np.float32))


@jax.jit
def _run(start: Any, x: Array, y: Array, batches: Array, kept: Array) -> Any:
    def objective(params: Any, rows: Array) -> Array:
        return jnp.mean(kept[rows] * losses(params, x[rows], y[rows]))

    def step(params: Any, rows: Array) -> tuple[Any, None]:
        gradient = jax.grad(objective)(params, rows)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), None

    def to_checkpoint(params: Any, rows: Array) -> tuple[Any, Any]:
        after, _ = jax.lax.scan(step, params, rows)
        return after, after

    return jax.lax.scan(to_checkpoint, start, batches)[1]


def checkpoint(params: Any, number: int) -> Any:
    """One of those that `trained` returns; -1 is the last."""
    return jax.tree.map(lambda p: p[number], params)


last = partial(checkpoint, number=-1)
