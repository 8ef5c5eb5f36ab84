"""A ViT, sinusoidal positions, the patches' mean through a tanh layer to the head."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, block, block_weights, layer_norm, norm_weights
from tools.models.problem import Problem


def patches(images: Array, kernel: Array) -> Array:
    """[B, side, side, 3] with a kernel [patch, patch, 3, D] give [B, patches, D]."""
    x = jax.lax.conv_general_dilated(
        images, kernel, kernel.shape[:2], "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return x.reshape(x.shape[0], -1, x.shape[-1])


def sinusoids(side: int, width: int) -> Array:
    """[side * side, D]: half of the channels for the row, half for the column; no parameters."""
    rates = 10_000.0 ** -(jnp.arange(width // 4) / max(width // 4 - 1, 1))
    angles = jnp.arange(side)[:, None] * rates
    one = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
    return jnp.concatenate([jnp.repeat(one, side, 0), jnp.tile(one, (side, 1))], -1)


def loss(params: Any, images: Array, labels: Array, heads: int) -> Array:
    x = patches(images, params["embedding"]) + params["embedding_bias"]
    x = x + sinusoids(round(x.shape[1] ** 0.5), x.shape[2])
    for p in params["layers"]:
        x = block(x, p, heads)
    pooled = layer_norm(x, params["norm"]).mean(1)
    pooled = jnp.tanh(pooled @ params["last"] + params["last_bias"])
    found = jax.nn.log_softmax(pooled @ params["head"] + params["head_bias"])
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, found.shape[-1]) * found, -1))


def problem(
    batch: int, width: int, depth: int, heads: int, side: int, patch: int, classes: int
) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "embedding": keys.dense(patch, patch, 3, width),
            "embedding_bias": jnp.zeros(width),
            "layers": [block_weights(keys, width) for _ in range(depth)],
            "norm": norm_weights(width),
            "last": keys.dense(width, width),
            "last_bias": jnp.zeros(width),
            "head": keys.dense(width, classes),
            "head_bias": jnp.zeros(classes),
        }
        return params, keys.normal(batch, side, side, 3), keys.below(classes, batch)

    return Problem("vit", partial(loss, heads=heads), make, batch, width, depth)
