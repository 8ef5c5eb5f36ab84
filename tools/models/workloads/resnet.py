"""ImageNet: ResNet-50, strides in its 3x3 convolutions, GroupNorm in place of BatchNorm."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, convolution, group_norm, norm_weights
from tools.models.problem import Problem
from tools.models.workloads.labels import cross_entropy_with_one_hot
from tools.models.workloads.workload import Workload

EXPANSION = 4


def normalised(x: Array, kernel: Array, norm: Any, groups: int, stride: int = 1) -> Array:
    return group_norm(convolution(x, kernel, stride), norm, groups)


def block(x: Array, p: Any, groups: int, stride: int) -> Array:
    y = jax.nn.relu(normalised(x, p["kernel1"], p["norm1"], groups))
    y = jax.nn.relu(normalised(y, p["kernel2"], p["norm2"], groups, stride))
    y = normalised(y, p["kernel3"], p["norm3"], groups)
    if "shortcut" in p:
        x = normalised(x, p["shortcut"], p["shortcut_norm"], groups, stride)
    return jax.nn.relu(x + y)


def loss(params: Any, images: Array, labels: Array, groups: int) -> Array:
    x = jax.nn.relu(normalised(images, params["stem"], params["stem_norm"], groups, 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for number, stage in enumerate(params["stages"]):
        for index, p in enumerate(stage):
            x = block(x, p, groups, stride=2 if number and not index else 1)
    logits = x.mean((1, 2)) @ params["head"] + params["head_bias"]
    return jnp.mean(cross_entropy_with_one_hot(logits, labels))


def block_weights(keys: Keys, inputs: int, inner: int) -> Any:
    outputs = EXPANSION * inner
    p = {
        "kernel1": keys.dense(1, 1, inputs, inner),
        "norm1": norm_weights(inner),
        "kernel2": keys.dense(3, 3, inner, inner),
        "norm2": norm_weights(inner),
        "kernel3": keys.dense(1, 1, inner, outputs),
        "norm3": norm_weights(outputs),
    }
    if inputs == outputs:
        return p
    return {
        **p,
        "shortcut": keys.dense(1, 1, inputs, outputs),
        "shortcut_norm": norm_weights(outputs),
    }


def stages(keys: Keys, width: int, depths: tuple[int, ...]) -> Any:
    inputs, found = width, list[Any]()
    for number, depth in enumerate(depths):
        inner = width * 2**number
        found.append(
            [
                block_weights(keys, EXPANSION * inner if index else inputs, inner)
                for index in range(depth)
            ]
        )
        inputs = EXPANSION * inner
    return found


def problem(
    batch: int, width: int, depths: tuple[int, ...], side: int, classes: int, groups: int
) -> Problem:
    """`width`: channels of the stem; `depths`: blocks of each stage."""

    def make() -> tuple[Any, ...]:
        keys, last = Keys(), EXPANSION * width * 2 ** (len(depths) - 1)
        params = {
            "stem": keys.dense(7, 7, 3, width),
            "stem_norm": norm_weights(width),
            "stages": stages(keys, width, depths),
            "head": keys.dense(last, classes),
            "head_bias": jnp.zeros(classes),
        }
        return params, keys.normal(batch, side, side, 3), keys.below(classes, batch)

    return Problem("imagenet resnet", partial(loss, groups=groups), make, batch, width, sum(depths))


WORKLOAD = Workload(
    problem,
    small={
        "batch": 8,
        "width": 16,
        "depths": (1, 1, 1, 1),
        "side": 64,
        "classes": 100,
        "groups": 8,
    },
    full={
        "batch": 128,
        "width": 64,
        "depths": (3, 4, 6, 3),
        "side": 224,
        "classes": 1000,
        "groups": 32,
    },
)
