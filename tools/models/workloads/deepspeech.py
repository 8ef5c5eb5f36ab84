"""LibriSpeech: DeepSpeech, bidirectional LSTMs and MLPs with CTC; LayerNorm for BatchNorm."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.families.lstm import cell
from tools.models.layers import Keys, layer_norm, norm_weights
from tools.models.problem import Problem
from tools.models.workloads.speech import (
    FULL,
    SMALL,
    ctc,
    subsampled,
    subsampling_weights,
    utterances,
    valid,
)
from tools.models.workloads.workload import Workload

FEED_FORWARD_LAYERS = 3


def one_way(x: Array, known: Array, p: Any, reverse: bool) -> Array:
    """An LSTM over [B, T, D] that keeps its state in frames that are not known."""

    def step(carry: Any, frame: tuple[Array, Array]) -> tuple[Any, Array]:
        y, there = frame
        new = cell(carry, y, p)
        carry = tuple(jnp.where(there[:, None], *pair) for pair in zip(new, carry, strict=True))
        return carry, carry[0]

    start = jnp.zeros((x.shape[0], p["recurrent"].shape[0]), x.dtype)
    frames = jnp.swapaxes(x, 0, 1), known.T
    return jnp.swapaxes(jax.lax.scan(step, (start, start), frames, reverse=reverse)[1], 0, 1)


def both_ways(x: Array, known: Array, p: Any) -> Array:
    ways = [one_way(x, known, p["forward"], False), one_way(x, known, p["backward"], True)]
    return jnp.concatenate(ways, -1) * known[..., None]


def feed_forward(x: Array, p: Any) -> Array:
    return jax.nn.relu(layer_norm(x, p["norm"]) @ p["kernel"] + p["bias"])


def loss(params: Any, frames: Array, lengths: Array, labels: Array, label_lengths: Array) -> Array:
    """[B, T, mels], [B], [B, N], [B]."""
    x, lengths = subsampled(frames, lengths, params["subsampling"])
    known = valid(lengths, x.shape[1])
    for p in params["recurrent"]:
        x = x + both_ways(layer_norm(x, p["norm"]), known, p)
    for p in params["feed_forward"]:
        x = x + feed_forward(x, p)
    logits = layer_norm(x, params["norm"]) @ params["head"] + params["head_bias"]
    return ctc(logits, lengths, labels, label_lengths)


def lstm_weights(keys: Keys, inputs: int, width: int) -> Any:
    return {
        "kernel": keys.dense(inputs, 4 * width),
        "recurrent": keys.dense(width, 4 * width),
        "bias": jnp.zeros(4 * width),
    }


def recurrent_weights(keys: Keys, width: int) -> Any:
    ways = {name: lstm_weights(keys, width, width // 2) for name in ("forward", "backward")}
    return {"norm": norm_weights(width), **ways}


def feed_forward_weights(keys: Keys, width: int) -> Any:
    return {
        "norm": norm_weights(width),
        "kernel": keys.dense(width, width),
        "bias": jnp.zeros(width),
    }


def problem(
    batch: int, width: int, depth: int, length: int, mels: int, characters: int, classes: int
) -> Problem:
    """`depth`: recurrent layers; `length`: frames; `characters`: labels of an utterance."""

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "subsampling": subsampling_weights(keys, mels, width),
            "recurrent": [recurrent_weights(keys, width) for _ in range(depth)],
            "feed_forward": [feed_forward_weights(keys, width) for _ in range(FEED_FORWARD_LAYERS)],
            "norm": norm_weights(width),
            "head": keys.dense(width, classes),
            "head_bias": jnp.zeros(classes),
        }
        return params, *utterances(keys, batch, length, mels, characters, classes)

    return Problem("librispeech deepspeech", loss, make, batch, width, depth)


WORKLOAD = Workload(
    problem, small={**SMALL, "width": 64, "depth": 2}, full={**FULL, "width": 512, "depth": 6}
)
