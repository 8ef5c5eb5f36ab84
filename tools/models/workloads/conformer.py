"""LibriSpeech: a conformer with the CTC loss; its convolutions have LayerNorm, not BatchNorm."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from tools.models.families.conformer import block, weights
from tools.models.layers import Keys
from tools.models.problem import Problem
from tools.models.workloads.positions import sinusoids
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


def loss(
    params: Any, frames: Array, lengths: Array, labels: Array, label_lengths: Array, heads: int
) -> Array:
    """[B, T, mels], [B], [B, N], [B]."""
    x, lengths = subsampled(frames, lengths, params["subsampling"])
    x = x + sinusoids(*x.shape[1:])
    for p in params["blocks"]:
        x = block(x, p, heads, valid(lengths, x.shape[1]))
    return ctc(x @ params["head"] + params["head_bias"], lengths, labels, label_lengths)


def problem(
    batch: int,
    width: int,
    depth: int,
    heads: int,
    taps: int,
    length: int,
    mels: int,
    characters: int,
    classes: int,
) -> Problem:
    """`taps`: frames a convolution sees; `length`: frames; `characters`: an utterance's labels."""

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = {
            "subsampling": subsampling_weights(keys, mels, width),
            "blocks": [weights(keys, width, taps) for _ in range(depth)],
            "head": keys.dense(width, classes),
            "head_bias": jnp.zeros(classes),
        }
        return params, *utterances(keys, batch, length, mels, characters, classes)

    return Problem("librispeech conformer", partial(loss, heads=heads), make, batch, width, depth)


WORKLOAD = Workload(
    problem,
    small={**SMALL, "width": 64, "depth": 2, "heads": 4, "taps": 5},
    full={**FULL, "width": 512, "depth": 4, "heads": 8, "taps": 5},
)
