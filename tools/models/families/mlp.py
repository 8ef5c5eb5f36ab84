"""MLPs: of constant width, as in the paper's figure of surgery against vmap; classifiers."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tools.models.layers import Keys
from tools.models.problem import Problem

Activation = Callable[[Array], Array]


def activated(params: Any, x: Array, activation: Activation) -> Array:
    """[B, D] through layers, each a pair of weights and biases."""
    for w, b in params:
        x = activation(x @ w + b)
    return x


def loss(params: Any, x: Array, y: Array, activation: Activation = jax.nn.relu) -> Array:
    """[B, D] each."""
    return jnp.mean(jnp.sum((activated(params, x, activation) - y) ** 2, -1))


def loss_without_biases(params: Any, x: Array, y: Array) -> Array:
    """[B, D] each; the mean over the entries, too."""
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def classifier_loss(params: Any, x: Array, labels: Array) -> Array:
    """x: [B, D]; the mean cross-entropy of the labels [B]."""
    *inner, (w, b) = params
    logits = activated(inner, x, jax.nn.relu) @ w + b
    total = jax.nn.logsumexp(logits, -1)
    return jnp.mean(total - jnp.take_along_axis(logits, labels[:, None], 1)[:, 0])


def problem(batch: int = 64, width: int = 1024, depth: int = 6) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [(keys.dense(width, width), jnp.zeros(width)) for _ in range(depth)]
        return params, keys.normal(batch, width), keys.normal(batch, width)

    return Problem("mlp", loss, make, batch, width, depth)


def smooth_problem(batch: int, width: int, depth: int) -> Problem:
    """With tanh in the place of relu."""
    how = partial(loss, activation=jnp.tanh)
    return Problem("mlp", how, problem(batch, width, depth).make, batch, width, depth)


def problem_without_biases(batch: int, width: int, depth: int) -> Problem:
    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [keys.dense(width, width) for _ in range(depth)]
        return params, keys.normal(batch, width), keys.normal(batch, width)

    return Problem("mlp", loss_without_biases, make, batch, width, depth)


def classifier(batch: int, widths: Sequence[int]) -> Problem:
    """`widths`: from the inputs' to the classes."""

    def make() -> tuple[Any, ...]:
        keys = Keys()
        params = [(keys.dense(*pair), jnp.zeros(pair[1])) for pair in pairwise(widths)]
        return params, keys.normal(batch, widths[0]), keys.below(widths[-1], batch)

    return Problem("mlp", classifier_loss, make, batch, shape="-".join(map(str, widths)))
