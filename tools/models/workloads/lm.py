"""FineWeb-Edu language model: a decoder with one table for the embedding and the head.

It has RMS norms, rotary positions, normalised queries and keys, and gated linear units.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, cross_entropy
from tools.models.problem import Problem
from tools.models.workloads.workload import Workload


def rms_norm(x: Array, scale: Array) -> Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(
        x.dtype
    )


def rotated(x: Array) -> Array:
    """[B, L, heads, K]: each pair of channels turned by an angle that grows with the position."""
    rates = 500_000.0 ** -(jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = jnp.arange(x.shape[1])[:, None, None] * rates
    even, odd = x[..., ::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    turned = (
        even * jnp.cos(angles) - odd * jnp.sin(angles),
        even * jnp.sin(angles) + odd * jnp.cos(angles),
    )
    return jnp.stack(turned, -1).reshape(x.shape).astype(x.dtype)


def unit(x: Array) -> Array:
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)


def attention(x: Array, p: Any, heads: int) -> Array:
    dtype = x.dtype
    q, k, v = (
        (x @ p[name].astype(dtype)).reshape(*x.shape[:2], heads, -1)
        for name in ("query", "key", "value")
    )
    q, k = unit(rotated(q)) * p["scale"].astype(dtype), unit(rotated(k))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=1.0).reshape(x.shape) @ p[
        "out"
    ].astype(dtype)


def layer(x: Array, p: Any, heads: int) -> Array:
    x = x + attention(rms_norm(x, p["norm1"]), p["attention"], heads)
    up, gate = jnp.split(rms_norm(x, p["norm2"]) @ p["up"].astype(x.dtype), 2, -1)
    return x + (up * jax.nn.sigmoid(gate)) @ p["down"].astype(x.dtype)


def loss(params: Any, tokens: Array, heads: int, dtype: Any, rematerialised: bool) -> Array:
    """tokens: [B, L + 1]; the mean cross-entropy of the next token, computed in `dtype`."""
    table, one = params["table"].astype(dtype), partial(layer, heads=heads)
    each: Callable[[Array, Any], Array] = jax.checkpoint(one) if rematerialised else one
    x = table[tokens[:, :-1]]
    for p in params["layers"]:
        x = each(x, p)
    logits = rms_norm(x, params["norm"]) @ table.T
    return jnp.mean(cross_entropy(logits.astype(jnp.float32), tokens[:, 1:]))


def layer_weights(keys: Keys, width: int, length: int) -> Any:
    square = {name: keys.dense(width, width) for name in ("query", "key", "value", "out")}
    return {
        "norm1": jnp.ones(width),
        "attention": {**square, "scale": jnp.log2(jnp.float32(length**2 - length))},
        "norm2": jnp.ones(width),
        "up": keys.dense(width, 8 * width),
        "down": keys.dense(4 * width, width),
    }


def problem(
    batch: int,
    width: int,
    depth: int,
    heads: int,
    length: int,
    vocabulary: int,
    dtype: Any = jnp.float32,
    rematerialised: bool = False,
) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "table": keys.normal(vocabulary, width) * 0.02,
            "layers": [layer_weights(keys, width, length) for _ in range(depth)],
            "norm": jnp.ones(width),
        }
        return params, keys.below(vocabulary, batch, length + 1)

    how = partial(loss, heads=heads, dtype=dtype, rematerialised=rematerialised)
    return Problem("fineweb lm", how, make, batch, width, depth)


WORKLOAD = Workload(
    problem,
    small={"batch": 8, "width": 128, "depth": 2, "heads": 4, "length": 128, "vocabulary": 1024},
    full={
        "batch": 8,
        "width": 1024,
        "depth": 12,
        "heads": 8,
        "length": 1024,
        "vocabulary": 50257,
        "dtype": jnp.bfloat16,
    },
)
