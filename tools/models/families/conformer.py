"""Conformer blocks: feed-forward, self-attention, depthwise convolution in time, feed-forward."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import (
    Keys,
    attend,
    attention_weights,
    feed_forward,
    feed_forward_weights,
    layer_norm,
    norm_weights,
)
from tools.models.problem import Problem

HEADS, TAPS, PARTS = 4, 15, ("feed_forward1", "attention", "convolution", "feed_forward2", "last")


def over_time(x: Array, kernel: Array) -> Array:
    """Depthwise: [B, T, D] with a kernel [taps, 1, D]."""
    dims = ("NTC", "TIO", "NTC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1,), "SAME", dimension_numbers=dims, feature_group_count=x.shape[-1]
    )


def convolution_module(x: Array, p: Any, valid: Array | None) -> Array:
    gated, gate = jnp.split(x @ p["inner"], 2, -1)
    gated = gated * jax.nn.sigmoid(gate)
    if valid is not None:
        gated = gated * valid[..., None]
    y = over_time(gated, p["depthwise"]) + p["depthwise_bias"]
    return jax.nn.silu(layer_norm(y, p["norm"])) @ p["outer"]


def block(x: Array, p: Any, heads: int = HEADS, valid: Array | None = None) -> Array:
    """[B, T, D]; frames that are not valid ([B, T]) are not looked at by the others."""
    norms, mask = p["norms"], None if valid is None else valid[:, None, None]
    x = x + 0.5 * feed_forward(layer_norm(x, norms["feed_forward1"]), p["feed_forward1"])
    y = layer_norm(x, norms["attention"])
    x = x + attend(y, y, p["attention"], heads, mask)
    x = x + convolution_module(layer_norm(x, norms["convolution"]), p["convolution"], valid)
    x = x + 0.5 * feed_forward(layer_norm(x, norms["feed_forward2"]), p["feed_forward2"])
    return layer_norm(x, norms["last"])


def loss(params: Any, frames: Array, targets: Array) -> Array:
    """[B, T, D] each."""
    x = frames
    for p in params:
        x = block(x, p)
    return jnp.mean(jnp.sum((x - targets) ** 2, (1, 2)))


def weights(keys: Keys, width: int, taps: int = TAPS) -> Any:
    return {
        "norms": {name: norm_weights(width) for name in PARTS},
        "feed_forward1": feed_forward_weights(keys, width, 4 * width),
        "attention": attention_weights(keys, width),
        "convolution": {
            "inner": keys.dense(width, 2 * width),
            "depthwise": keys.dense(taps, 1, width),
            "depthwise_bias": jnp.zeros(width),
            "norm": norm_weights(width),
            "outer": keys.dense(width, width),
        },
        "feed_forward2": feed_forward_weights(keys, width, 4 * width),
    }


def problem(batch: int = 8, width: int = 144, depth: int = 1, length: int = 128) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [weights(keys, width) for _ in range(depth)]
        return params, keys.normal(batch, length, width), keys.normal(batch, length, width)

    return Problem("conformer", loss, make, batch, width, depth)
