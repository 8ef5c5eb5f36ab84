"""An MLP with dropout and a small language model to train, with a fresh batch for every step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.statistics.statistic_models import cross_entropy, draws, labels

SIZE, WIDTH, CLASSES, VOCABULARY, LENGTH = 6, 5, 3, 11, 7


@dataclass(frozen=True)
class Training:
    """`loss(params, *batch)` is a mean over the examples; `batch(t)` is that of step t, examples
    first.
    """

    loss: Callable[..., Any]
    params: Any
    batch: Callable[[int], tuple[Any, ...]]


def mlp(p, x, y):
    h = jnp.tanh(x @ p["hidden"]["w"] + p["hidden"]["b"])
    return cross_entropy(h @ p["head"], y)


def normalised(x, scale):
    spread = jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-3)
    return scale * (x - jnp.mean(x, -1, keepdims=True)) / spread


def language_model(p, ids, following):
    """One pre-LayerNorm block of causal attention and gelu MLP, learned positions, untied head."""
    x = p["tokens"][ids] + p["positions"]
    q, k, v = jnp.split(normalised(x, p["attention"]["scale"]) @ p["attention"]["in"], 3, -1)
    scores = jnp.einsum("bld,bmd->blm", q, k) / np.sqrt(WIDTH)
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    x = x + jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v @ p["attention"]["out"]
    x = x + jax.nn.gelu(normalised(x, p["mlp"]["scale"]) @ p["mlp"]["in"]) @ p["mlp"]["out"]
    return cross_entropy(normalised(x, p["scale"]) @ p["head"], following)


def of_mlp():
    draw = draws(0)
    params = {"hidden": {"w": draw(4, WIDTH), "b": draw(WIDTH)}, "head": draw(WIDTH, CLASSES)}

    def batch(t):
        x = draws(100 + t)(SIZE, 4)
        return x, np.argmax(x[:, :CLASSES], -1)

    return Training(mlp, params, batch)


def of_language_model():
    draw = draws(1)
    params = {
        "tokens": draw(VOCABULARY, WIDTH),
        "positions": draw(LENGTH, WIDTH),
        "attention": {
            "scale": 1 + 0.1 * draw(WIDTH),
            "in": draw(WIDTH, 3 * WIDTH) / 2,
            "out": draw(WIDTH, WIDTH) / 2,
        },
        "mlp": {
            "scale": 1 + 0.1 * draw(WIDTH),
            "in": draw(WIDTH, 8) / 2,
            "out": draw(8, WIDTH) / 2,
        },
        "scale": 1 + 0.1 * draw(WIDTH),
        "head": draw(WIDTH, VOCABULARY) / 2,
    }

    def batch(t):
        """Every token is followed by the one three further on, modulo the vocabulary, but for the
        odd one.
        """
        text = (labels(200 + t, SIZE, 1, below=VOCABULARY) + 3 * np.arange(LENGTH + 1)) % VOCABULARY
        text[:, t % LENGTH] = 0
        return text[:, :-1], text[:, 1:]

    return Training(language_model, params, batch)


TRAININGS = {"mlp": of_mlp(), "language model": of_language_model()}
