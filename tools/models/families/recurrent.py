"""Gated recurrent layers, each a scan over time; alone, or stacked in scans over blocks of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys
from tools.models.problem import Problem

BLOCKS = 3


def over_time(p: Any, x: Array) -> Array:
    """[B, T, D] to the states at all times."""

    def step(h: Array, frame: Array) -> tuple[Array, Array]:
        update, candidate = jnp.split(frame @ p["input"] + h @ p["state"] + p["bias"], 2, -1)
        h = h + jax.nn.sigmoid(update) * (jnp.tanh(candidate) - h)
        return h, h

    _, states = jax.lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(states, 0, 1)


def loss(params: Any, x: Array) -> Array:
    """x: [B, T, D]."""
    for p in params:
        x = over_time(p, x)
    return jnp.mean(x**2)


def nested_loss(params: Any, x: Array) -> Array:
    """x: [B, T, D]; each layer is a scan over blocks, whose body scans over time."""

    def block(x: Array, p: Any) -> tuple[Array, None]:
        return x + over_time(p, x), None

    for stacked in params:
        x, _ = jax.lax.scan(block, x, stacked)
    return jnp.mean(x**2)


def weights(keys: Keys, width: int) -> Any:
    square = {name: keys.dense(width, 2 * width) for name in ("input", "state")}
    return {**square, "bias": jnp.zeros(2 * width)}


def nested_weights(keys: Keys, width: int) -> Any:
    """Those of the blocks, stacked."""
    blocks = [weights(keys, width) for _ in range(BLOCKS)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)


def problem(batch: int = 8, width: int = 64, depth: int = 1, length: int = 32) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [weights(keys, width) for _ in range(depth)]
        return params, keys.normal(batch, length, width)

    return Problem("recurrent", loss, make, batch, width, depth)


def nested_problem(batch: int = 8, width: int = 64, depth: int = 1, length: int = 32) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [nested_weights(keys, width) for _ in range(depth)]
        return params, keys.normal(batch, length, width)

    return Problem("nested recurrent", nested_loss, make, batch, width, depth)
