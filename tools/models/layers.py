"""The layers that several families share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


class Keys:
    """Normally distributed weights, from a new key each."""

    def __init__(self) -> None:
        self._key = jax.random.key(0)

    def __call__(self) -> Array:
        self._key, key = jax.random.split(self._key)
        return key

    def dense(self, *shape: int) -> Array:
        """The last dimension is the output's, the others are summed over."""
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        return jax.random.normal(self(), shape) / fan_in**0.5

    def normal(self, *shape: int) -> Array:
        return jax.random.normal(self(), shape)

    def below(self, limit: int, *shape: int) -> Array:
        return jax.random.randint(self(), shape, 0, limit)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Negative log-likelihood: logits [..., K] and labels [...] give [...]."""
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -found[..., 0]


def norm_weights(width: int) -> Any:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def layer_norm(x: Array, p: Any) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def group_norm(x: Array, p: Any, groups: int = 8) -> Array:
    """Normalise [B, H, W, C] over the positions and channels of each group."""
    grouped = x.reshape(*x.shape[:3], groups, -1)
    centred = grouped - grouped.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(centred).mean((1, 2, 4), keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * p["scale"] + p["bias"]


def attention_weights(keys: Keys, width: int) -> Any:
    return {name: keys.dense(width, width) for name in ("query", "key", "value", "out")}


def attention(x: Array, p: Any, heads: int, causal: bool) -> Array:
    """Self-attention on [B, L, D]."""
    length = x.shape[1]
    return attend(x, x, p, heads, jnp.tril(jnp.ones((length, length), bool)) if causal else None)


def attend(x: Array, memory: Array, p: Any, heads: int, mask: Array | None = None) -> Array:
    """From [B, L, D] to memory [B, M, D], where the mask, which broadcasts to [B, heads, L, M], is
    true.
    """
    q, k, v = (
        _heads(y @ p[name], heads) for y, name in ((x, "query"), (memory, "key"), (memory, "value"))
    )
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v).reshape(x.shape) @ p["out"]


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


def feed_forward_weights(keys: Keys, width: int, inner: int) -> Any:
    up, down = keys.dense(width, inner), keys.dense(inner, width)
    return {"up": up, "up_bias": jnp.zeros(inner), "down": down, "down_bias": jnp.zeros(width)}


def feed_forward(x: Array, p: Any, activation: Callable[[Array], Array] = jax.nn.gelu) -> Array:
    return activation(x @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def convolution(x: Array, kernel: Array, stride: int = 1, groups: int = 1) -> Array:
    """[B, H, W, C] with a kernel [h, w, C / groups, F]."""
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=dims, feature_group_count=groups
    )
