"""A decoder language model whose layers are scanned, LayerNorm first, without positions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, causal
from tools.models.problem import Problem

HEADS = 4


def norm(x: Array, scale: Array) -> Array:
    return scale * (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def layer(x: Array, p: Any) -> tuple[Array, None]:
    h = norm(x, p["norm1"])
    q, k, v = (jnp.einsum("bld,dhk->bhlk", h, p[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bhlk,bhmk->bhlm", q, k) / q.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(causal(x.shape[1]), scores, -1e30))
    x = x + jnp.einsum("bhlm,bhmk,hkd->bld", weights, v, p["o"])
    return x + jax.nn.gelu(norm(x, p["norm2"]) @ p["up"]) @ p["down"], None


def scores(params: Any, tokens: Array) -> Array:
    """tokens: [B, L + 1]; log-probabilities of the next token, [B, L, vocabulary]."""
    x, _ = jax.lax.scan(layer, params["embedding"][tokens[:, :-1]], params["layers"])
    return jax.nn.log_softmax(x @ params["head"])


def loss(params: Any, tokens: Array) -> Array:
    """The cross-entropy of the next token, summed over positions."""
    found = scores(params, tokens)
    return -jnp.mean(jnp.sum(jnp.take_along_axis(found, tokens[:, 1:, None], -1), (1, 2)))


def layer_weights(keys: Keys, width: int) -> Any:
    heads = (HEADS, width // HEADS)
    inward = {name: keys.dense(width, width).reshape(width, *heads) for name in "qkv"}
    return {
        **inward,
        "o": keys.dense(width, width).reshape(*heads, width),
        "up": keys.dense(width, 4 * width),
        "down": keys.dense(4 * width, width),
        "norm1": jnp.ones(width),
        "norm2": jnp.ones(width),
    }


def problem(batch: int, width: int, depth: int, length: int, vocabulary: int = 512) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        layers = [layer_weights(keys, width) for _ in range(depth)]
        params = {
            "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers),
            "embedding": keys.normal(vocabulary, width),
            "head": keys.dense(width, vocabulary),
        }
        return params, keys.below(vocabulary, batch, length + 1)

    return Problem("scanned lm", loss, make, batch, width, depth, f"length {length}")
