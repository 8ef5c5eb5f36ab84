"""Adam and MicroAdam under the noise of differential privacy.

Squares of the clipped gradients may be without noise, which tells what they are worth, or have some
of their own: docs/guides/privacy.md says what both releases cost together.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from hlo_surgery.optimizers.private import normal_like
from hlo_surgery.optimizers.required import with_statistics

SQUARES = "clipped_second_moment"
BATCH_SIZE = 16
"""Of the runs: how much noise is added to v must be known before the first batch."""


class State(NamedTuple):
    """The key of the noise to come, and the states of both parts."""

    key: jax.Array
    gradient: Any
    inner: Any


@cache
def _squares(max_norm: float) -> Any:
    """Two that are made apart do not count as the same, and are asked for at each update."""
    return hs.clipped_second_moment(max_norm)


def private_adam(rate: Any, *, max_norm: float, noise: float, seed: int, **settings: Any) -> Any:
    """`dp_adam`, with `noise * max_norm / B` on the mean of the clipped gradients."""
    return ho.dp_adam(rate, max_norm, noise, seed, **settings)


def private_micro_adam(
    rate: Any, *, max_norm: float, noise: float, noise_of_squares: float, seed: int, **settings: Any
) -> Any:
    """`micro_adam` of the noisy mean, and of the clipped gradients' mean squares with a noise of
    `noise_of_squares * max_norm**2 / B`; what of that is left in v is added to it.
    """
    gradients, b2 = ho.private_gradient(max_norm, noise, seed), settings["b2"]
    deviation = noise_of_squares * max_norm**2 / BATCH_SIZE
    averaged = deviation * ((1 - b2) / (1 + b2)) ** 0.5
    inner = ho.micro_adam(rate, eps_root=averaged, **settings)

    def init(params: Any) -> State:
        # Of the seed another stream than the gradients'.
        key = jax.random.fold_in(jax.random.key(seed), 1)
        return State(jax.random.key_data(key), gradients.init(params), inner.init(params))

    def update(updates: Any, state: State, params: Any, given: Mapping[str, Any]) -> Any:
        following, now = jax.random.split(jax.random.wrap_key_data(state.key))
        size = {"batch_size": given["batch_size"]}
        mean, gradient = gradients.update(
            updates, state.gradient, params, clipped_mean=given["clipped_mean"], **size
        )
        noise = normal_like(now, given[SQUARES])
        squares = jax.tree.map(lambda x, n: x + deviation * n, given[SQUARES], noise)
        steps, found = inner.update(mean, state.inner, params, second_moment=squares, **size)
        return steps, State(jax.random.key_data(following), gradient, found)

    asked = {**gradients.required_statistics, SQUARES: _squares(max_norm)}
    return with_statistics(asked, init, update)
