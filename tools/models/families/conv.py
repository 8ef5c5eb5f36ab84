"""One convolution alone, linear in its filter: the plain gradient is the filter gradient alone."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, convolution
from tools.models.problem import Problem


@dataclass(frozen=True)
class Shape:
    name: str
    batch: int
    side: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1


SHAPES = [
    Shape("3x3 64-64 on 32x32", 32, 32, 64, 64, 3),
    Shape("3x3 stride 2 128-128 on 16x16", 32, 16, 128, 128, 3, 2),
    Shape("3x3 256-256 on 8x8", 64, 8, 256, 256, 3),
    Shape("depthwise 3x3 64 on 32x32", 32, 32, 64, 64, 3, groups=64),
    Shape("7x7 stride 2 3-64 on 32x32", 32, 32, 3, 64, 7, 2),
]


def loss(kernel: Array, x: Array, cotangent: Array, stride: int, groups: int) -> Array:
    return jnp.mean(jnp.sum(convolution(x, kernel, stride, groups) * cotangent, (1, 2, 3)))


def problem(shape: Shape, batch: int = 0) -> Problem:
    batch = batch or shape.batch

    def make() -> tuple[Any, ...]:
        keys, result = Keys(), -(-shape.side // shape.stride)
        kernel = keys.dense(shape.kernel, shape.kernel, shape.inputs // shape.groups, shape.outputs)
        x = keys.normal(batch, shape.side, shape.side, shape.inputs)
        return kernel, x, keys.normal(batch, result, result, shape.outputs)

    return Problem(
        "conv",
        partial(loss, stride=shape.stride, groups=shape.groups),
        make,
        batch,
        shape=shape.name,
    )
