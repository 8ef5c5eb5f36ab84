"""The layers that models share."""

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


def causal(length: int) -> Array:
    """The mask [L, L] of what each position sees: itself, and those before it."""
    return jnp.tril(jnp.ones((length, length), bool))


def attend(x: Array, memory: Array, p: Any, heads: int, mask: Array | None = None) -> Array:
    """From [B, L, D] to memory [B, M, D], where the mask, which broadcasts to [B, heads, L, M], is
    true.
    """
    sources = ((x, "query"), (memory, "key"), (memory, "value"))
    q, k, v = (_heads(_projected(y, p, name), heads) for y, name in sources)
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v).reshape(x.shape)
    return _projected(mixed, p, "out")


def _projected(x: Array, p: Any, name: str) -> Array:
    """With its bias, where it has one."""
    y, bias = x @ p[name], p.get(f"{name}_bias")
    return y if bias is None else y + bias


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


def feed_forward_weights(keys: Keys, width: int, inner: int) -> Any:
    up, down = keys.dense(width, inner), keys.dense(inner, width)
    return {"up": up, "up_bias": jnp.zeros(inner), "down": down, "down_bias": jnp.zeros(width)}


def feed_forward(x: Array, p: Any, activation: Callable[[Array], Array] = jax.nn.gelu) -> Array:
    return activation(x @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]


def block_weights(keys: Keys, width: int) -> Any:
    return {
        "norm1": norm_weights(width),
        "attention": attention_weights(keys, width),
        "norm2": norm_weights(width),
        "feed_forward": feed_forward_weights(keys, width, 4 * width),
    }


def block(
    x: Array,
    p: Any,
    heads: int,
    mask: Array | None = None,
    activation: Callable[[Array], Array] = jax.nn.gelu,
) -> Array:
    """A transformer's on [B, L, D], LayerNorm first; the mask is `attend`'s."""
    y = layer_norm(x, p["norm1"])
    x = x + attend(y, y, p["attention"], heads, mask)
    return x + feed_forward(layer_norm(x, p["norm2"]), p["feed_forward"], activation)


def gated(gates: Array, cell: Array) -> tuple[Array, Array]:
    """An LSTM's new hidden state and cell [B, D], from its gates [B, 4 * D] before activation."""
    i, f, g, o = jnp.split(gates, 4, -1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def convolution(
    x: Array,
    kernel: Array,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
    padding: str = "SAME",
) -> Array:
    """[B, H, W, C] with a kernel [h, w, C / groups, F]."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def upsample(x: Array, kernel: Array) -> Array:
    """A transposed convolution of stride 2: [B, H, W, C] to [B, 2 * H, 2 * W, F]."""
    return jax.lax.conv_transpose(
        x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
