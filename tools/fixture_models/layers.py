"""The layers that several models share."""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fixture_models.model import Weight


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Negative log-likelihood of integer labels: logits [..., K], labels [...] give [...]."""
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def rms_norm(x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * scale


def group_norm(x: Array, scale: Array, bias: Array, groups: int) -> Array:
    """Normalise [B, H, W, C] over the positions and channels of each group of each example."""
    grouped = x.reshape(*x.shape[:3], groups, -1)
    mean = jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
    variance = jnp.var(grouped, axis=(1, 2, 4), keepdims=True)
    return ((grouped - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + bias


def attention(x: Array, params: Any, causal: bool) -> Array:
    """Multi-head self-attention on [B, L, D]."""
    q, k, v = (jnp.einsum("bld,dhk->blhk", x, params[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhk,bmhk->bhqm", q, k) / jnp.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    mixed = jnp.einsum("bhqm,bmhk->bqhk", jax.nn.softmax(scores), v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, params["out"])


def attention_weights(width: int, heads: int, head_width: int) -> dict[str, Weight]:
    inward = Weight((width, heads, head_width))
    return {
        "query": inward,
        "key": inward,
        "value": inward,
        "out": Weight((heads, head_width, width)),
    }


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
