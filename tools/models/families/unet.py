"""A small U-Net: GroupNorm, skip connections, transposed convolutions on the way up."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, convolution, group_norm, norm_weights, upsample
from tools.models.problem import Problem


def block(x: Array, p: Any, stride: int = 1) -> Array:
    return jax.nn.silu(group_norm(convolution(x, p["kernel"], stride), p["norm"]))


def loss(params: Any, noisy: Array, noise: Array) -> Array:
    """[B, H, W, C] each; what a denoiser's output is from the noise, squared."""
    x = block(noisy, params["first"])
    skips: list[Array] = []
    for p in params["down"]:
        skips.append(x)
        x = block(x, p, stride=2)
    for p in params["up"]:
        x = jnp.concatenate([upsample(x, p["transposed"]), skips.pop()], -1)
        x = block(x, p)
    error = convolution(x, params["last"]) + params["last_bias"] - noise
    return jnp.mean(jnp.sum(error**2, (1, 2, 3)))


def block_weights(keys: Keys, inputs: int, outputs: int) -> Any:
    return {"kernel": keys.dense(3, 3, inputs, outputs), "norm": norm_weights(outputs)}


def up_weights(keys: Keys, inputs: int, outputs: int) -> Any:
    return {
        "transposed": keys.dense(2, 2, inputs, outputs),
        **block_weights(keys, 2 * outputs, outputs),
    }


def problem(batch: int = 8, width: int = 32, depth: int = 2, side: int = 32) -> Problem:
    """`width`: channels at full resolution; `depth`: how often the resolution halves."""
    channels = [width * 2**level for level in range(depth + 1)]

    def make() -> tuple[Any, ...]:
        keys, pairs = Keys(), list(pairwise(channels))
        params = {
            "first": block_weights(keys, 3, width),
            "down": [block_weights(keys, fine, coarse) for fine, coarse in pairs],
            "up": [up_weights(keys, coarse, fine) for fine, coarse in reversed(pairs)],
            "last": keys.dense(1, 1, width, 3),
            "last_bias": jnp.zeros(3),
        }
        return params, keys.normal(batch, side, side, 3), keys.normal(batch, side, side, 3)

    return Problem("unet", loss, make, batch, width, depth)
