"""Sophia: the average gradient over an average of the curvature's diagonal, clipped."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hlo_surgery.estimators import EMAState, ema_init, ema_update
from hlo_surgery.optimizers.curvature.told import like_parameters
from hlo_surgery.optimizers.hyperparameters import check_decay
from hlo_surgery.optimizers.learning_rates import LearningRate, stepping
from hlo_surgery.optimizers.required import StatisticsTransformation, chained, with_statistics
from hlo_surgery.statistics.derived import positive


class SophiaState(NamedTuple):
    """The averages of the gradient and of the curvature's diagonal, and b2."""

    momentum: EMAState
    diagonal: EMAState
    decay: jax.Array

    def told(self, curvature: Any) -> "SophiaState":
        """The state with one more diagonal in its average."""
        own = like_parameters(self.momentum.average, curvature, _is_diagonal)
        return self._replace(diagonal=ema_update(self.diagonal, own, self.decay))


def sophia(
    learning_rate: LearningRate,
    b1: float = 0.96,
    b2: float = 0.99,
    gamma: float = 0.05,
    eps: float = 1e-12,
    *,
    weight_decay: LearningRate = 0.0,
) -> StatisticsTransformation:
    """Sophia: a step subtracts `learning_rate * clip(m / max(gamma * h, eps), -1, 1)`.

    m averages the gradient at every step, and h the curvature's diagonal whenever `with_curvature`
    tells of one, every tenth step in the paper; neither has a bias correction (Liu et al., "Sophia:
    A Scalable Stochastic Second-order Optimizer", algorithm 3). With `second_moment` of a loss on
    `sampled_labels`, h averages the Monte-Carlo Fisher diagonal from every example's square, where
    the paper's Gauss-Newton-Bartlett estimate has B times the square of the mean. Until the first
    h every step is of one learning rate. As of the other optimizers here, the decay of weights is
    not multiplied by the learning rate.

    >>> sophia(1e-3).required_statistics
    {}
    """
    check_decay("b1", b1)
    check_decay("b2", b2)
    positive("sophia", "gamma", gamma)
    positive("sophia", "eps", eps)

    def init(params: Any) -> SophiaState:
        real = jax.tree.map(jnp.real, params)
        averages = ema_init(params), ema_init(real)
        return SophiaState(*averages, jnp.asarray(b2, averages[1].weight.dtype))

    def update(
        updates: Any, state: SophiaState, params: Any, given: Mapping[str, Any]
    ) -> tuple[Any, SophiaState]:
        momentum = ema_update(state.momentum, updates, b1)

        def direction(m: jax.Array, h: jax.Array) -> jax.Array:
            return jnp.clip(m / jnp.maximum(gamma * h, eps), -1, 1)

        found = jax.tree.map(direction, momentum.average, state.diagonal.average)
        return found, state._replace(momentum=momentum)

    return chained({}, with_statistics({}, init, update), *stepping(learning_rate, weight_decay))


def _is_diagonal(momentum: jax.Array, found: Any) -> bool:
    return jnp.shape(found) == momentum.shape
