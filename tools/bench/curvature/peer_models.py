"""Models whose curvature is held against other packages.

The autoencoder and the small convolutions are those of kfac-jax's examples for MNIST, with random
images in place of MNIST's; the others are larger than the one and have labels for the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, cross_entropy

WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)


@dataclass(frozen=True)
class Model:
    """`logits` of (params, x); `layers`: the names of kernels, each with how many places its
    outputs have; `y`: labels, or where `bernoulli` the probability of each output.
    """

    name: str
    logits: Callable[[Any, Array], Array]
    params: Any
    x: Array
    y: Array
    layers: dict[str, int] = field(default_factory=dict[str, int])
    bernoulli: bool = False


def loss(model: Model) -> Callable[..., Array]:
    """The mean over examples of (params, x, y)."""

    def mean(p: Any, x: Array, y: Array) -> Array:
        logits = model.logits(p, x)
        each = bernoulli_entropy if model.bernoulli else cross_entropy
        return jnp.mean(each(logits, y))

    return mean


def bernoulli_entropy(logits: Array, y: Array) -> Array:
    return jnp.sum(jnp.logaddexp(logits, 0) - logits * y, -1)


def dense(x: Array, p: Any) -> Array:
    return x @ p["w"] + p["b"]


def convolved(x: Array, p: Any, stride: int) -> Array:
    dims = ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(x, p["w"], (stride, stride), "SAME", dimension_numbers=dims)
    return made + p["b"]


def pooled(x: Array) -> Array:
    """The largest of each two by two."""
    size, step = (1, 2, 2, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, size, step, "SAME")


def mlp(p: Any, x: Array) -> Array:
    x = jnp.tanh(dense(x, p["first"]))
    return dense(jnp.tanh(dense(x, p["second"])), p["last"])


def encoded(p: Any, x: Array) -> Array:
    """There and back, with no nonlinearity at the narrowest."""
    for number in range(1, len(WIDTHS)):
        x = dense(x, p[f"layer{number}"])
        linear = WIDTHS[number] == min(WIDTHS) or number == len(WIDTHS) - 1
        x = x if linear else jnp.tanh(x)
    return x


def small_images(p: Any, x: Array) -> Array:
    x = pooled(jax.nn.relu(convolved(x, p["first"], 1)))
    x = pooled(jax.nn.relu(convolved(x, p["second"], 1)))
    x = jax.nn.relu(dense(x.reshape(len(x), -1), p["third"]))
    return dense(x, p["last"])


def images(p: Any, x: Array) -> Array:
    x = jax.nn.relu(convolved(x, p["first"], 1))
    x = jax.nn.relu(convolved(x, p["second"], 2))
    return dense(x.reshape(len(x), -1), p["last"])


def weights(keys: Keys, *shape: int) -> Any:
    return {"w": keys.dense(*shape), "b": jnp.zeros(shape[-1])}


def autoencoder(batch: int) -> Model:
    keys, pairs = Keys(), list(enumerate(pairwise(WIDTHS), 1))
    params = {f"layer{number}": weights(keys, *pair) for number, pair in pairs}
    x = jax.random.uniform(keys(), (batch, WIDTHS[0]))
    return Model("autoencoder", encoded, params, x, x, dict.fromkeys(params, 1), bernoulli=True)


def classifiers(batch: int) -> list[Model]:
    """An MLP, small convolutions, and convolutions of more channels; labels are random."""
    keys = Keys()
    of_mlp = {
        "first": weights(keys, 784, 256),
        "second": weights(keys, 256, 256),
        "last": weights(keys, 256, 10),
    }
    of_small = {
        "first": weights(keys, 5, 5, 1, 2),
        "second": weights(keys, 5, 5, 2, 4),
        "third": weights(keys, 7 * 7 * 4, 32),
        "last": weights(keys, 32, 10),
    }
    of_images = {
        "first": weights(keys, 3, 3, 3, 16),
        "second": weights(keys, 3, 3, 16, 32),
        "last": weights(keys, 8 * 8 * 32, 10),
    }
    labels = keys.below(10, batch)
    flat, small = keys.normal(batch, 784), keys.normal(batch, 28, 28, 1)
    square = keys.normal(batch, 16, 16, 3)
    places = {"first": 784, "second": 196, "third": 1, "last": 1}
    return [
        Model("MLP", mlp, of_mlp, flat, labels, {"first": 1, "second": 1, "last": 1}),
        Model("small images", small_images, of_small, small, labels, places),
        Model("images", images, of_images, square, labels, {"first": 256, "second": 64, "last": 1}),
    ]
