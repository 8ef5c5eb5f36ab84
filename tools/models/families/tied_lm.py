"""A decoder language model with biases everywhere, whose head is its embedding."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, block, block_weights, causal, layer_norm, norm_weights
from tools.models.problem import Problem

HEADS = 4


def loss(params: Any, tokens: Array) -> Array:
    """tokens: [B, L + 1]; the mean cross-entropy of the next token."""
    x = params["embedding"][tokens[:, :-1]] + params["positions"]
    for p in params["layers"]:
        x = block(x, p, HEADS, causal(x.shape[1]))
    found = jax.nn.log_softmax(layer_norm(x, params["norm"]) @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(found, tokens[:, 1:, None], -1))


def layer_weights(keys: Keys, width: int) -> Any:
    weights = block_weights(keys, width)
    biases = {f"{name}_bias": jnp.zeros(width) for name in weights["attention"]}
    return weights | {"attention": weights["attention"] | biases}


def problem(
    batch: int = 8, width: int = 64, depth: int = 12, length: int = 32, vocabulary: int = 128
) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "embedding": keys.dense(vocabulary, width),
            "positions": jnp.zeros((length, width)),
            "layers": [layer_weights(keys, width) for _ in range(depth)],
            "norm": norm_weights(width),
        }
        return params, keys.below(vocabulary, batch, length + 1)

    return Problem("tied lm", loss, make, batch, width, depth)
