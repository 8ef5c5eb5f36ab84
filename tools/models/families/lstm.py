"""An LSTM over time: one weight at each step, its gradient accumulated by the backward loop."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, gated
from tools.models.problem import Problem


def cell(carry: tuple[Array, Array], frame: Array, p: Any) -> tuple[Array, Array]:
    """One step from (hidden, cell), [B, D] each."""
    hidden, memory = carry
    return gated(frame @ p["kernel"] + hidden @ p["recurrent"] + p["bias"], memory)


def loss(params: Any, x: Array, y: Array) -> Array:
    """x: [B, T, D]; the last hidden state against y: [B, D]."""

    def step(carry: Any, frame: Array) -> tuple[Any, None]:
        return cell(carry, frame, params), None

    start = jnp.zeros_like(y)
    (hidden, _), _ = jax.lax.scan(step, (start, start), jnp.swapaxes(x, 0, 1))
    return jnp.mean(jnp.sum((hidden - y) ** 2, -1))


def problem(batch: int = 32, width: int = 256, length: int = 128) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {name: keys.dense(width, 4 * width) for name in ("kernel", "recurrent")}
        params["bias"] = jnp.zeros(4 * width)
        return params, keys.normal(batch, length, width), keys.normal(batch, width)

    return Problem("lstm", loss, make, batch, width)
