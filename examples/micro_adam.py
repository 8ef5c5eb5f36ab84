"""MicroAdam on a language model: Adam with the examples' own second moment, in one other line.

    pip install '.[examples]' && python micro_adam.py

A transformer of two layers reads bytes of Python's standard library. Both optimizers see the same
batches. The paper found MicroAdam no better than Adam, and so do we (see
tools/experiments/FINDINGS.md in the repository): what is shown is that trying it takes one line,
and what a step then costs.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 64, 2, 64, 16
RATE = 3e-3
OPTIMIZERS = {"adam": lambda: optax.adam(RATE), "micro_adam": lambda: ho.micro_adam(RATE)}


def loss(params: Any, tokens: Array) -> Array:
    """Mean cross-entropy of the next byte; tokens are [B, LENGTH + 1]."""
    x = params["embedding"][tokens[:, :-1]] + params["positions"]
    for layer in params["layers"]:
        x = x + attention(normalised(x), layer)
        x = x + jax.nn.gelu(normalised(x) @ layer["up"]) @ layer["down"]
    scores = normalised(x) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:]).mean()


def attention(x: Array, layer: Any) -> Array:
    """Causal attention."""
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    query, key, value = (jnp.reshape(x @ layer[name], heads) for name in ("q", "k", "v"))
    found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return found.reshape(x.shape) @ layer["out"]


def normalised(x: Array) -> Array:
    """Each position's features scaled to a mean square of one."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def initial() -> Any:
    """The model's parameters before training."""
    keys = iter(jax.random.split(jax.random.key(0), 6 * LAYERS + 3))
    shapes = dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH))
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}

    def normal(rows: int, columns: int) -> Array:
        return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

    return {
        "embedding": normal(256, WIDTH),
        "positions": normal(LENGTH, WIDTH),
        "layers": [{name: normal(*s) for name, s in shapes.items()} for _ in range(LAYERS)],
        "head": normal(WIDTH, 256),
    }


def batches(steps: int) -> Iterator[np.ndarray]:
    """Texts of Python's own sources, [BATCH, LENGTH + 1], the same ones each time."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - LENGTH, BATCH)
        yield np.stack([text[i : i + LENGTH + 1] for i in starts]).astype(np.int32)


def train(steps: int) -> dict[str, tuple[float, float]]:
    """By optimizer the mean loss of the last tenth of the steps, and the median seconds of one.

    They take turns, so that what else the machine does slows down both.
    """
    runs = {name: Run(make()) for name, make in OPTIMIZERS.items()}
    for tokens in batches(steps):
        for run in runs.values():
            run.take(tokens)
    last = max(steps // 10, 1)
    return {
        name: (statistics.mean(run.losses[-last:]), statistics.median(run.seconds))
        for name, run in runs.items()
    }


class Run:
    """A model in training, with the loss and the seconds of every step."""

    def __init__(self, optimizer: Any) -> None:
        self.params = initial()
        self.state = optimizer.init(self.params)
        self.step = hs.train_step(loss, optimizer)
        self.losses, self.seconds = list[float](), list[float]()

    def take(self, tokens: np.ndarray) -> None:
        """One step."""
        start = time.perf_counter()
        self.params, self.state, metrics = self.step(self.params, self.state, tokens)
        self.losses.append(float(metrics["loss"]))
        self.seconds.append(time.perf_counter() - start)


def main() -> None:
    """Train with both."""
    parser = argparse.ArgumentParser(description="MicroAdam on a language model.")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    for name, (value, seconds) in train(given.steps).items():
        print(f"{name:10} loss {value:.3f} nats a byte, {1e3 * seconds:.1f} ms a step")


if __name__ == "__main__":
    main()
