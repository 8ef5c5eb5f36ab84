"""An MLP to train, with a fresh batch for every step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.statistics.statistic_models import cross_entropy, draws

SIZE, WIDTH, CLASSES = 6, 5, 3


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


def of_mlp():
    draw = draws(0)
    params = {"hidden": {"w": draw(4, WIDTH), "b": draw(WIDTH)}, "head": draw(WIDTH, CLASSES)}

    def batch(t):
        x = draws(100 + t)(SIZE, 4)
        return x, np.argmax(x[:, :CLASSES], -1)

    return Training(mlp, params, batch)


TRAININGS = {"mlp": of_mlp()}
