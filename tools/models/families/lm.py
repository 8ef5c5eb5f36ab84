"""A decoder language model: pre-LayerNorm, gelu, learned positions, untied head."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from tools.models.layers import (
    Keys,
    attention,
    attention_weights,
    cross_entropy,
    feed_forward,
    feed_forward_weights,
    layer_norm,
    norm_weights,
)
from tools.models.problem import Problem

HEADS = 4


def loss(params: Any, tokens: Array) -> Array:
    """tokens: [B, L + 1]; the mean cross-entropy of the next token."""
    x = params["embedding"][tokens[:, :-1]] + params["positions"]
    for p in params["layers"]:
        x = x + attention(layer_norm(x, p["norm1"]), p["attention"], HEADS, causal=True)
        x = x + feed_forward(layer_norm(x, p["norm2"]), p["feed_forward"])
    logits = layer_norm(x, params["norm"]) @ params["head"]
    return jnp.mean(cross_entropy(logits, tokens[:, 1:]))


def layer(keys: Keys, width: int) -> Any:
    return {
        "norm1": norm_weights(width),
        "attention": attention_weights(keys, width),
        "norm2": norm_weights(width),
        "feed_forward": feed_forward_weights(keys, width, 4 * width),
    }


def problem(
    batch: int = 8, width: int = 256, depth: int = 4, length: int = 256, vocabulary: int = 512
) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "embedding": keys.normal(vocabulary, width),
            "positions": keys.normal(length, width),
            "layers": [layer(keys, width) for _ in range(depth)],
            "norm": norm_weights(width),
            "head": keys.dense(width, vocabulary),
        }
        return params, keys.below(vocabulary, batch, length + 1)

    return Problem("lm", loss, make, batch, width, depth)
