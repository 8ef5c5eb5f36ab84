"""A small ResNet for 32 x 32 images: GroupNorm, two blocks at each of three resolutions."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, convolution, cross_entropy, group_norm, norm_weights
from tools.models.problem import Problem

CLASSES, STAGES = 10, 3


def block(x: Array, p: Any) -> Array:
    """Two convolutions beside a shortcut; the resolution halves where the channels change."""
    stride = 2 if "shortcut" in p else 1
    y = convolution(jax.nn.relu(group_norm(x, p["norm1"])), p["kernel1"], stride)
    y = convolution(jax.nn.relu(group_norm(y, p["norm2"])), p["kernel2"])
    return y + (convolution(x, p["shortcut"], stride) if "shortcut" in p else x)


def loss(params: Any, images: Array, labels: Array) -> Array:
    x = convolution(images, params["stem"])
    for p in params["blocks"]:
        x = block(x, p)
    pooled = jax.nn.relu(group_norm(x, params["norm"])).mean((1, 2))
    return jnp.mean(cross_entropy(pooled @ params["head"] + params["head_bias"], labels))


def block_weights(keys: Keys, inputs: int, outputs: int) -> Any:
    p = {"norm1": norm_weights(inputs), "kernel1": keys.dense(3, 3, inputs, outputs)}
    p |= {"norm2": norm_weights(outputs), "kernel2": keys.dense(3, 3, outputs, outputs)}
    return p | ({"shortcut": keys.dense(1, 1, inputs, outputs)} if inputs != outputs else {})


def problem(batch: int = 16, width: int = 32, depth: int = 2, side: int = 32) -> Problem:
    """`width`: channels of the first stage; `depth`: blocks of each stage."""
    channels = [width * 2**stage for stage in range(STAGES) for _ in range(depth)]

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "stem": keys.dense(3, 3, 3, width),
            "blocks": [block_weights(keys, *pair) for pair in pairwise([width, *channels])],
            "norm": norm_weights(channels[-1]),
            "head": keys.dense(channels[-1], CLASSES),
            "head_bias": jnp.zeros(CLASSES),
        }
        return params, keys.normal(batch, side, side, 3), keys.below(CLASSES, batch)

    return Problem("resnet", loss, make, batch, width, depth)
