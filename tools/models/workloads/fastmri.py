"""fastMRI: a U-Net from an undersampled scan to the full one.

Two 3x3 convolutions a level without biases, instance norm without parameters, leaky ReLU, average
pooling on the way down and transposed convolutions on the way up; the loss is the mean absolute
error.
"""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, convolution, upsample
from tools.models.problem import Problem
from tools.models.workloads.workload import Workload


def activated(x: Array) -> Array:
    """Every channel of every example normalised over its positions, then a leaky ReLU."""
    centred = x - x.mean((1, 2), keepdims=True)
    variance = jnp.square(centred).mean((1, 2), keepdims=True)
    return jax.nn.leaky_relu(centred * jax.lax.rsqrt(variance + 1e-5), 0.2)


def block(x: Array, p: Any) -> Array:
    return activated(convolution(activated(convolution(x, p["kernel1"])), p["kernel2"]))


def pooled(x: Array) -> Array:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def loss(params: Any, scans: Array, targets: Array) -> Array:
    """[B, H, W] each."""
    x, skips = scans[..., None], list[Array]()
    for p in params["down"]:
        skips.append(block(x, p))
        x = pooled(skips[-1])
    x = block(x, params["bottom"])
    for p in params["up"]:
        x = jnp.concatenate([activated(upsample(x, p["transposed"])), skips.pop()], -1)
        x = block(x, p)
    found = convolution(x, params["last"])[..., 0] + params["last_bias"]
    return jnp.mean(jnp.mean(jnp.abs(found - targets), (1, 2)))


def block_weights(keys: Keys, inputs: int, outputs: int) -> Any:
    return {
        "kernel1": keys.dense(3, 3, inputs, outputs),
        "kernel2": keys.dense(3, 3, outputs, outputs),
    }


def up_weights(keys: Keys, inputs: int, outputs: int) -> Any:
    return {
        "transposed": keys.dense(2, 2, inputs, outputs),
        **block_weights(keys, 2 * outputs, outputs),
    }


def problem(batch: int, width: int, depth: int, side: int) -> Problem:
    """`width`: channels at full resolution; `depth`: how often the resolution halves."""
    channels = [width * 2**level for level in range(depth + 1)]

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "down": [block_weights(keys, *pair) for pair in pairwise([1, *channels[:-1]])],
            "bottom": block_weights(keys, *channels[-2:]),
            "up": [
                up_weights(keys, coarse, fine)
                for fine, coarse in reversed(list(pairwise(channels)))
            ],
            "last": keys.dense(1, 1, width, 1),
            "last_bias": jnp.zeros(()),
        }
        return params, keys.normal(batch, side, side), keys.normal(batch, side, side)

    return Problem("fastmri unet", loss, make, batch, width, depth)


WORKLOAD = Workload(
    problem,
    small={"batch": 4, "width": 8, "depth": 2, "side": 64},
    full={"batch": 4, "width": 32, "depth": 4, "side": 320},
)
