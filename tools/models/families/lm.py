"""A decoder language model: pre-LayerNorm, gelu, learned positions, untied head."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from tools.models.layers import (
    Keys,
    block,
    block_weights,
    causal,
    cross_entropy,
    layer_norm,
    norm_weights,
)
from tools.models.problem import Problem

HEADS = 4


def scores(params: Any, tokens: Array) -> Array:
    """tokens: [B, L + 1]; logits of the next token, [B, L, vocabulary]."""
    x = params["embedding"][tokens[:, :-1]] + params["positions"]
    for p in params["layers"]:
        x = block(x, p, HEADS, causal(x.shape[1]))
    return layer_norm(x, params["norm"]) @ params["head"]


def loss(params: Any, tokens: Array) -> Array:
    """The mean cross-entropy of the next token."""
    return jnp.mean(cross_entropy(scores(params, tokens), tokens[:, 1:]))


def problem(
    batch: int = 8, width: int = 256, depth: int = 4, length: int = 256, vocabulary: int = 512
) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "embedding": keys.normal(vocabulary, width),
            "positions": keys.normal(length, width),
            "layers": [block_weights(keys, width) for _ in range(depth)],
            "norm": norm_weights(width),
            "head": keys.dense(width, vocabulary),
        }
        return params, keys.below(vocabulary, batch, length + 1)

    return Problem("lm", loss, make, batch, width, depth)
