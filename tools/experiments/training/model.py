"""The paper's decoder LM: learned positions, pre-LayerNorm, gelu, untied, no biases, as Nanodo."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class Size:
    """V: vocabulary, L: sequence length, N: blocks, H: heads, c: Chinchilla's tokens a parameter.

    The width D, the MLP's width F and the number of steps K follow.
    """

    name: str
    V: int
    L: int
    N: int
    H: int
    c: float = 20

    @property
    def D(self) -> int:
        return 64 * self.H

    @property
    def F(self) -> int:
        return 4 * self.D

    @property
    def backbone(self) -> int:
        """Parameters without embedding, head and LayerNorms', as the paper counts them."""
        return 12 * self.N * self.D**2

    @property
    def P(self) -> int:
        """The parameters that the number of steps is made of: all but the head."""
        return self.backbone + self.V * self.D

    def steps(self, batch_size: int) -> int:
        """K."""
        return int(self.c * self.P // (self.L * batch_size))


SIZES = {
    # The paper's appendix prints L = 2024 once; its codebase has 2048.
    "paper": Size("paper", V=32101, L=2048, N=12, H=16),
    # Bytes for tokens.
    "small": Size("small", V=256, L=64, N=2, H=1),
    # To see in minutes that everything runs; it learns little.
    "tiny": Size("tiny", V=256, L=16, N=1, H=1, c=1),
}


def init(size: Size, seed: int) -> Any:
    """Parameters in float32; weights of variance 1 / fan-in."""
    keys = iter(jax.random.split(jax.random.key(seed), 3 + 6 * size.N))

    def dense(rows: int, columns: int) -> Array:
        return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

    def table(rows: int) -> Array:
        return jax.random.normal(next(keys), (rows, size.D)) / size.D**0.5

    def block() -> Any:
        square = {name: dense(size.D, size.D) for name in ("query", "key", "value", "out")}
        mlp = {"up": dense(size.D, size.F), "down": dense(size.F, size.D)}
        return {**square, **mlp, "norm1": jnp.ones(size.D), "norm2": jnp.ones(size.D)}

    ends = {"embedding": table(size.V), "positions": table(size.L), "head": dense(size.D, size.V)}
    return {**ends, "blocks": [block() for _ in range(size.N)], "norm": jnp.ones(size.D)}


def loss(params: Any, tokens: Array) -> Array:
    """The mean cross-entropy of the next token, in nats; tokens: [B, L + 1]."""
    found = jax.nn.log_softmax(logits(params, tokens[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(found, tokens[:, 1:, None], axis=-1))


def logits(params: Any, tokens: Array) -> Array:
    """[B, L] to [B, L, V]."""
    x = params["embedding"][tokens] + params["positions"]
    for p in params["blocks"]:
        x = x + _attention(_layer_norm(x, p["norm1"]), p)
        x = x + _dense(jax.nn.gelu(_dense(_layer_norm(x, p["norm2"]), p["up"])), p["down"])
    return _dense(_layer_norm(x, params["norm"]), params["head"])


def _attention(x: Array, p: Any) -> Array:
    split = (*x.shape[:2], -1, 64)
    q, k, v = (_dense(x, p[name]).reshape(split) for name in ("query", "key", "value"))
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / 8
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    mixed = jnp.einsum("bhlm,bmhd->blhd", weights, v).reshape(x.shape)
    return _dense(mixed, p["out"])


def _dense(x: Array, weights: Array) -> Array:
    """x @ weights as a product of two matrices, which XLA on CPU differentiates twice as fast."""
    return (x.reshape(-1, x.shape[-1]) @ weights).reshape(*x.shape[:-1], -1)


def _layer_norm(x: Array, scale: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6) * scale
