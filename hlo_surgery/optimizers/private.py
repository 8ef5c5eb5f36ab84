"""DP-SGD: clipped gradients of the individual examples, with noise."""

from collections.abc import Mapping
from typing import Any

import jax
import optax

from hlo_surgery.norm_statistics import clipped_mean
from hlo_surgery.optimizers.learning_rates import LearningRate, stepping
from hlo_surgery.optimizers.required import StatisticsTransformation, batch_size, chained, with_statistics
from hlo_surgery.passes.element_types import widened_tree


def dp_sgd(
    learning_rate: LearningRate,
    max_norm: float,
    noise_multiplier: float,
    seed: int,
    momentum: float | None = None,
) -> StatisticsTransformation:
    """SGD by the mean of the examples' gradients, each clipped to `max_norm`, with normal noise.

    The noise of each element has the standard deviation noise_multiplier * max_norm / B: of the sum of the clipped
    gradients noise_multiplier * max_norm, which moves by `max_norm` at most when an example is added or removed.
    What privacy that buys over a whole training is for an accountant to say, such as Google's dp-accounting. `seed`
    must stay secret, and `jax.random` is not made to withstand an attacker.

    >>> list(dp_sgd(0.1, max_norm=1.0, noise_multiplier=1.1, seed=0).required_statistics)
    ['clipped_mean']
    """
    statistics = {"clipped_mean": clipped_mean(max_norm)}

    def init(params: Any) -> jax.Array:
        return jax.random.PRNGKey(seed)

    def update(updates: Any, key: jax.Array, params: Any, given: Mapping[str, Any]) -> tuple[Any, jax.Array]:
        deviation = noise_multiplier * max_norm / batch_size(given)
        means, tree = jax.tree.flatten(widened_tree(given["clipped_mean"]))
        following, *keys = jax.random.split(key, len(means) + 1)
        noisy = [x + deviation * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(means, keys, strict=True)]
        return tree.unflatten(noisy), following

    trace = [] if momentum is None else [optax.trace(momentum)]
    return chained(statistics, with_statistics(statistics, init, update), *trace, *stepping(learning_rate, 0.0))
