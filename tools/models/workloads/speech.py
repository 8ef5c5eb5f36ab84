"""What the LibriSpeech workloads share: log-mel frames subsampled in time, CTC of padded labels."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from tools.models.layers import Keys, convolution

SUBSAMPLING = 4
SMALL = {"batch": 8, "length": 128, "mels": 40, "characters": 12, "classes": 64}
# 20 s of sound, in frames of 10 ms.
FULL = {"batch": 32, "length": 2000, "mels": 80, "characters": 256, "classes": 1024}


def valid(lengths: Array, size: int) -> Array:
    """[B, size]: true up to each length."""
    return jnp.arange(size) < lengths[:, None]


def halved(lengths: Array) -> Array:
    return (lengths + 1) // 2


def subsampled(frames: Array, lengths: Array, p: Any) -> tuple[Array, Array]:
    """Two convolutions of stride 2 over time and frequency: [B, T, mels] to [B, T / 4, D], and the
    lengths of these.
    """
    x = frames[..., None]
    for q in p["convolutions"]:
        lengths = halved(lengths)
        x = jax.nn.relu(convolution(x, q["kernel"], 2) + q["bias"])
        x = x * valid(lengths, x.shape[1])[..., None, None]
    return x.reshape(*x.shape[:2], -1) @ p["dense"] + p["dense_bias"], lengths


def subsampling_weights(keys: Keys, mels: int, width: int) -> Any:
    pairs = ((1, width), (width, width))
    return {
        "convolutions": [
            {"kernel": keys.dense(3, 3, *pair), "bias": jnp.zeros(width)} for pair in pairs
        ],
        "dense": keys.dense(-(-mels // SUBSAMPLING) * width, width),
        "dense_bias": jnp.zeros(width),
    }


def ctc(logits: Array, lengths: Array, labels: Array, label_lengths: Array) -> Array:
    """[B, T, K] with labels [B, N], which are not 0, the blank; the mean over the examples."""
    absent = 1.0 - valid(lengths, logits.shape[1])
    return jnp.mean(
        optax.ctc_loss(logits, absent, labels, 1.0 - valid(label_lengths, labels.shape[1]))
    )


def utterances(
    keys: Keys, batch: int, length: int, mels: int, characters: int, classes: int
) -> tuple[Array, ...]:
    """Frames, labels, and their lengths: between half and all of `length` and `characters`."""
    return (
        keys.normal(batch, length, mels),
        length - keys.below(length // 2, batch),
        1 + keys.below(classes - 1, batch, characters),
        characters - keys.below(characters // 2, batch),
    )
