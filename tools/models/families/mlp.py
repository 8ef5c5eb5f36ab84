"""An MLP of constant width, as in the paper's figure of surgery against vmap."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys
from tools.models.problem import Problem


def loss(params: Any, x: Array, y: Array) -> Array:
    for w, b in params:
        x = jax.nn.relu(x @ w + b)
    return jnp.mean(jnp.sum((x - y) ** 2, -1))


def problem(batch: int = 64, width: int = 1024, depth: int = 6) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [(keys.dense(width, width), jnp.zeros(width)) for _ in range(depth)]
        return params, keys.normal(batch, width), keys.normal(batch, width)

    return Problem("mlp", loss, make, batch, width, depth)
