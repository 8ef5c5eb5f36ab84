"""DP-SGD: clipped gradients of the individual examples, with noise."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hlo_surgery.norm_statistics import clipped_mean
from hlo_surgery.optimizers.learning_rates import LearningRate, stepping
from hlo_surgery.optimizers.required import StatisticsTransformation, batch_size, chained, with_statistics
from hlo_surgery.passes.element_types import widened_tree


class DPState(NamedTuple):
    """The key of the noise to come, and with momentum the sums of the noisy gradients."""

    key: jax.Array
    sums: Any


def dp_sgd(
    learning_rate: LearningRate,
    max_norm: float,
    noise_multiplier: float,
    seed: int,
    momentum: float | None = None,
) -> StatisticsTransformation:
    """SGD by the mean of the examples' gradients, each clipped to `max_norm`, with normal noise.

    The noise of each element, and of both parts of a complex one, has the standard deviation noise_multiplier *
    max_norm / B: of the sum of the clipped gradients noise_multiplier * max_norm, which moves by `max_norm` at most
    when an example is added or removed. What privacy that buys over a whole training is for an accountant to say, such
    as Google's dp-accounting. `seed` must stay secret and be another one wherever noise is added, and `jax.random` is
    not made to withstand an attacker. `momentum` sums the noisy gradients up as `optax.trace` does.

    >>> list(dp_sgd(0.1, max_norm=1.0, noise_multiplier=1.1, seed=0).required_statistics)
    ['clipped_mean']
    """
    statistics = {"clipped_mean": _clipped_mean(max_norm)}

    def init(params: Any) -> DPState:
        sums = None if momentum is None else jax.tree.map(jnp.zeros_like, widened_tree(params))
        return DPState(jax.random.PRNGKey(seed), sums)

    def update(updates: Any, state: DPState, params: Any, given: Mapping[str, Any]) -> tuple[Any, DPState]:
        deviation = noise_multiplier * max_norm / jnp.maximum(batch_size(given), 1)
        means, tree = jax.tree.flatten(widened_tree(given["clipped_mean"]))
        following, *keys = jax.random.split(state.key, len(means) + 1)
        noisy = [x + deviation * _noise(k, x) for x, k in zip(means, keys, strict=True)]
        direction = tree.unflatten(noisy)
        if momentum is None:
            return direction, DPState(following, None)
        sums = jax.tree.map(lambda s, g: momentum * s + g, state.sums, direction)
        return sums, DPState(following, sums)

    return chained(statistics, with_statistics(statistics, init, update), *stepping(learning_rate, 0.0))


def _noise(key: jax.Array, x: jax.Array) -> jax.Array:
    """Of deviation 1 in each real number: that of a complex one's parts is 1 / sqrt(2) in `jax.random.normal`."""
    return jax.random.normal(key, x.shape, x.dtype) * (math.sqrt(2) if jnp.iscomplexobj(x) else 1)


# Two of the same bound are one statistic.
_clipped_mean = cache(clipped_mean)
