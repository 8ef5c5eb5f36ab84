"""WMT: encoder-decoder Transformer, one table for embeddings and head, label smoothing, padding."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import (
    Keys,
    attend,
    attention_weights,
    block,
    block_weights,
    causal,
    feed_forward,
    layer_norm,
    norm_weights,
)
from tools.models.problem import Problem
from tools.models.workloads.labels import cross_entropy_with_one_hot
from tools.models.workloads.positions import sinusoids
from tools.models.workloads.workload import Workload

PADDING, SMOOTHING = 0, 0.1


def embedded(table: Array, tokens: Array) -> Array:
    """[B, L] give [B, L, D]."""
    return table[tokens] + sinusoids(tokens.shape[1], table.shape[1])


def encoded(params: Any, source: Array, heads: int) -> Array:
    x, known = embedded(params["table"], source), (source != PADDING)[:, None, None]
    for p in params["encoder"]:
        x = block(x, p, heads, known, jax.nn.relu)
    return layer_norm(x, params["encoder_norm"])


def decoded(params: Any, memory: Array, source: Array, before: Array, heads: int) -> Array:
    x, known = embedded(params["table"], before), (source != PADDING)[:, None, None]
    for p in params["decoder"]:
        y = layer_norm(x, p["norm1"])
        x = x + attend(y, y, p["attention"], heads, causal(x.shape[1]))
        x = x + attend(layer_norm(x, p["norm2"]), memory, p["cross_attention"], heads, known)
        x = x + feed_forward(layer_norm(x, p["norm3"]), p["feed_forward"], jax.nn.relu)
    return layer_norm(x, params["decoder_norm"])


def loss(params: Any, source: Array, target: Array, heads: int) -> Array:
    """[B, L] each, padded; the mean over the sentences of the mean over a sentence's tokens."""
    before = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1]
    x = decoded(params, encoded(params, source, heads), source, before, heads)
    logits = x @ params["table"].T / x.shape[-1] ** 0.5
    each = cross_entropy_with_one_hot(logits, target, SMOOTHING)
    counted = target != PADDING
    return jnp.mean(jnp.sum(each * counted, 1) / jnp.sum(counted, 1))


def decoder_weights(keys: Keys, width: int) -> Any:
    return {
        **block_weights(keys, width),
        "cross_attention": attention_weights(keys, width),
        "norm3": norm_weights(width),
    }


def sentences(keys: Keys, batch: int, length: int, vocabulary: int) -> Array:
    """Tokens of random lengths between half and all of `length`, padded."""
    lengths = length - keys.below(length // 2, batch, 1)
    return jnp.where(
        jnp.arange(length) < lengths, 1 + keys.below(vocabulary - 1, batch, length), PADDING
    )


def problem(
    batch: int, width: int, depth: int, heads: int, length: int, vocabulary: int
) -> Problem:
    """`depth`: layers of the encoder, and of the decoder."""

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "table": keys.normal(vocabulary, width),
            "encoder": [block_weights(keys, width) for _ in range(depth)],
            "encoder_norm": norm_weights(width),
            "decoder": [decoder_weights(keys, width) for _ in range(depth)],
            "decoder_norm": norm_weights(width),
        }
        return (
            params,
            sentences(keys, batch, length, vocabulary),
            sentences(keys, batch, length, vocabulary),
        )

    return Problem("wmt transformer", partial(loss, heads=heads), make, batch, width, depth)


WORKLOAD = Workload(
    problem,
    small={"batch": 8, "width": 128, "depth": 2, "heads": 4, "length": 64, "vocabulary": 1024},
    full={"batch": 16, "width": 1024, "depth": 6, "heads": 16, "length": 256, "vocabulary": 32000},
)
