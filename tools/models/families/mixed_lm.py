"""The paper's decoder language model in mixed precision: bfloat16 compute, float32 parameters.

LayerNorm first, gelu, learned positions; layers are rematerialised.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys, causal
from tools.models.problem import Problem

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN = 32101, 2048, 1024, 16, 4096
HALF = jnp.bfloat16


def normalised(x: Array, scale: Array, bias: Array) -> Array:
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
    return (centred * rate * scale + bias).astype(HALF)


def attention(h: Array, w: Any) -> Array:
    """Self-attention on [B, L, D]; scores and their softmax in float32."""
    q, k, v = ((h @ w[name]).reshape(*h.shape[:2], HEADS, -1) for name in ("q", "k", "v"))
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(causal(h.shape[1]), scores / (WIDTH / HEADS) ** 0.5, -1e9)
    weights = jax.nn.softmax(scores).astype(HALF)
    return jnp.einsum("bhlm,bmhd->blhd", weights, v).reshape(h.shape) @ w["o"]


@jax.checkpoint
def layer(p: dict[str, Any], x: Array) -> Array:
    w = {name: value.astype(HALF) for name, value in p.items() if not name.startswith("norm")}
    x = x + attention(normalised(x, *p["norm1"]), w)
    inner = jax.nn.gelu(normalised(x, *p["norm2"]) @ w["up"] + w["up_bias"])
    return x + inner @ w["down"] + w["down_bias"]


def loss(p: dict[str, Any], tokens: Array, labels: str) -> Array:
    """tokens: [B, L]; the mean cross-entropy of the next, of the last the first."""
    x = p["embedding"].astype(HALF)[tokens] + p["positions"].astype(HALF)
    for q in p["layers"]:
        x = layer(q, x)
    head = p["head"] if "head" in p else p["embedding"].T
    logits = (normalised(x, *p["norm"]) @ head.astype(HALF)).astype(jnp.float32)
    found, wanted = jax.nn.log_softmax(logits), jnp.roll(tokens, -1, 1)
    if labels == "onehot":
        return -jnp.mean(jnp.sum(found * jax.nn.one_hot(wanted, VOCABULARY), -1))
    return -jnp.mean(jnp.take_along_axis(found, wanted[..., None], -1))


def layer_weights(keys: Keys) -> dict[str, Any]:
    return {
        **{name: keys.dense(WIDTH, WIDTH) for name in "qkvo"},
        "up": keys.dense(WIDTH, HIDDEN),
        "down": keys.dense(HIDDEN, WIDTH),
        "up_bias": jnp.zeros(HIDDEN),
        "down_bias": jnp.zeros(WIDTH),
        "norm1": norm_weights(),
        "norm2": norm_weights(),
    }


def norm_weights() -> tuple[Array, Array]:
    return jnp.ones(WIDTH), jnp.zeros(WIDTH)


def problem(batch: int, depth: int, tied: bool, labels: str = "take") -> Problem:
    """`tied`: its head is its embedding; `labels`: how the loss picks them, "take" or "onehot"."""

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "embedding": keys.normal(VOCABULARY, WIDTH),
            "positions": keys.normal(LENGTH, WIDTH),
            "layers": [layer_weights(keys) for _ in range(depth)],
            "norm": norm_weights(),
        }
        head = {} if tied else {"head": keys.dense(WIDTH, VOCABULARY)}
        return params | head, keys.below(VOCABULARY, batch, LENGTH)

    return Problem("mixed lm", partial(loss, labels=labels), make, batch, WIDTH, depth)
