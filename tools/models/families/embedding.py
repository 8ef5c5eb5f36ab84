"""A large table of which each example touches a few rows, and a small head."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, cross_entropy
from tools.models.problem import Problem

CLASSES = 16


def loss(params: Any, tokens: Array, labels: Array) -> Array:
    """tokens: [B, L]; the mean of their embeddings is classified."""
    pooled = jnp.tanh(params["table"][tokens]).mean(1)
    return jnp.mean(cross_entropy(pooled @ params["head"], labels))


def problem(batch: int = 64, width: int = 256, vocabulary: int = 4096, length: int = 64) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {"table": keys.normal(vocabulary, width), "head": keys.dense(width, CLASSES)}
        return params, keys.below(vocabulary, batch, length), keys.below(CLASSES, batch)

    return Problem("embedding", loss, make, batch, width)
