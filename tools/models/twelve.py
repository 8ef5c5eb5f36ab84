"""Twelve workloads that users bring, in sizes whose gradient takes some ten milliseconds on a CPU.

The middle transformer is there with 128 and with 512 positions. `GRADIENTS` has what a workload
runs where that is not `jax.grad` of its loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from tools.models.families import embedding, lm, lstm, mlp, resnet, vit
from tools.models.layers import Keys, convolution, cross_entropy
from tools.models.problem import Problem


def cnn_loss(params: Any, images: Array, labels: Array, stride: int) -> Array:
    """Convolutions with biases and relu, their mean over the positions to a head."""
    x = images
    for p in params["layers"]:
        x = jax.nn.relu(convolution(x, p["kernel"], stride) + p["bias"])
    return jnp.mean(cross_entropy(x.reshape(len(x), -1) @ params["head"], labels))


def cnn(batch: int, side: int, channels: Sequence[int], stride: int) -> Problem:
    def make() -> tuple[Any, ...]:
        keys, left = Keys(), -(-side // stride ** (len(channels) - 1))
        layers = [
            {"kernel": keys.dense(3, 3, *pair), "bias": jnp.zeros(pair[1])}
            for pair in pairwise(channels)
        ]
        params = {"layers": layers, "head": keys.dense(left * left * channels[-1], 10)}
        return params, keys.normal(batch, side, side, channels[0]), keys.below(10, batch)

    shape = f"{side}x{side}, {'-'.join(map(str, channels))}"
    return Problem("cnn", partial(cnn_loss, stride=stride), make, batch, shape=shape)


@dataclass(frozen=True)
class Adapted:
    """A frozen weight with a trained product beside it, for `x @ weight`."""

    frozen: Array
    down: Array
    up: Array

    def __rmatmul__(self, x: Array) -> Array:
        return x @ self.frozen + x @ self.down @ self.up


def lora(batch: int, rank: int, width: int, depth: int, length: int) -> Problem:
    """A language model of which adapters of queries and values alone are trained."""
    frozen, tokens = lm.problem(batch, width, depth, length).make()

    def loss(adapters: Any, tokens: Array) -> Array:
        layers = [
            p
            | {"attention": p["attention"] | {n: Adapted(p["attention"][n], *own[n]) for n in own}}
            for p, own in zip(frozen["layers"], adapters, strict=True)
        ]
        return lm.loss(frozen | {"layers": layers}, tokens)

    def make() -> tuple[Any, ...]:
        keys = Keys()

        def adapter() -> tuple[Array, Array]:
            return keys.dense(width, rank), keys.dense(rank, width)

        return [{n: adapter() for n in ("query", "value")} for _ in range(depth)], tokens

    return Problem("lora", loss, make, batch, width, depth)


def accumulated(loss: Callable[..., Array], chunk: int) -> Callable[..., Any]:
    """Its gradient over microbatches of so many examples, in a scan that adds up."""

    def gradient(params: Any, *batch: Array) -> Any:
        def step(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *part)), None

        parts = [leaf.reshape(-1, chunk, *leaf.shape[1:]) for leaf in batch]
        total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda leaf: leaf * chunk / len(batch[0]), total)

    return gradient


TWELVE: dict[str, Callable[[], Problem]] = {
    "mlp wide": lambda: mlp.classifier(128, (784, 512, 512, 10)),
    "mlp narrow": lambda: mlp.classifier(4096, (64, 64, 64, 64, 10)),
    "transformer 32": lambda: lm.problem(128, 64, 1, 32, 256),
    "transformer 128": lambda: lm.problem(32, 128, 1, 128, 256),
    "transformer 512": lambda: lm.problem(4, 128, 1, 512, 256),
    "cnn 8x8": lambda: cnn(256, 8, (1, 16, 32), 1),
    "cnn 28x28": lambda: cnn(64, 28, (1, 16, 32), 2),
    "resnet": lambda: resnet.problem(16, 16, 1),
    "lstm": lambda: lstm.problem(32, 128, 64),
    "embedding bag": lambda: embedding.problem(128, 64, 4096, 32),
    "lora": lambda: lora(32, 8, 128, 1, 128),
    "vit": lambda: vit.problem(8, 96, 2, 4, 64, 8, 100),
    "accumulation": lambda: mlp.problem(64, 256, 4),
}
# Which no cost of a plan was fitted on.
HELD_OUT: dict[str, Callable[[], Problem]] = {
    "mlp middle": lambda: mlp.classifier(512, (256, 256, 256, 10)),
    "transformer 64": lambda: lm.problem(16, 96, 2, 64, 512),
    "transformer 256": lambda: lm.problem(8, 64, 1, 256, 256),
    "cnn 16x16": lambda: cnn(32, 16, (3, 24, 48), 2),
    "resnet 32": lambda: resnet.problem(8, 32, 1),
    "lstm short": lambda: lstm.problem(64, 64, 24),
    "bag small": lambda: embedding.problem(32, 32, 2048, 64),
    "vit small": lambda: vit.problem(16, 48, 2, 4, 32, 8, 10),
}
GRADIENTS = {"accumulation": partial(accumulated, chunk=8)}
