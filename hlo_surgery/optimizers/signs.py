"""Where to place the sign: before the mean over the examples, after it, or after that over time.

The paper's section "Where should you place the sign in SignSGD?". The average over time is m = b1 m
+ (1 - b1) x from zero, without bias correction; a step subtracts
`learning_rate * direction + weight_decay * params`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.estimators import EMAState, ema_init, ema_update
from hlo_surgery.optimizers.learning_rates import LearningRate, check_decays, stepping
from hlo_surgery.optimizers.required import (
    Given,
    Needed,
    StatisticsTransformation,
    chained,
    with_statistics,
)
from hlo_surgery.statistics.derived import Statistic
from hlo_surgery.statistics.elementwise import mean_sign

MEAN_SIGN: dict[str, Statistic] = {"mean_sign": mean_sign()}


def sign_ema(
    learning_rate: LearningRate, b1: float = 0.9, *, weight_decay: LearningRate = 0.0
) -> StatisticsTransformation:
    """SignEMA, also called Signum: the sign of the average gradient.

    >>> optimizer = sign_ema(0.1)
    >>> updates, _ = optimizer.update(-7.0, optimizer.init(0.0))
    >>> round(float(updates), 4)
    0.1
    """
    return _optimizer({}, lambda g, given: g, jnp.sign, b1, stepping(learning_rate, weight_decay))


def sign_sgd(
    learning_rate: LearningRate, b1: float = 0.9, *, weight_decay: LearningRate = 0.0
) -> StatisticsTransformation:
    """SignSGD with momentum: the average over time of the sign of each minibatch gradient.

    >>> optimizer = sign_sgd(0.1, b1=0.5)
    >>> updates, _ = optimizer.update(-7.0, optimizer.init(0.0))
    >>> round(float(updates), 4)
    0.05
    """
    steps = stepping(learning_rate, weight_decay)
    return _optimizer({}, lambda g, given: jax.tree.map(jnp.sign, g), None, b1, steps)


def micro_sign_sgd(
    learning_rate: LearningRate, b1: float = 0.9, *, weight_decay: LearningRate = 0.0
) -> StatisticsTransformation:
    """MicroSignSGD: the average over time of mean_b sign(g_b).

    >>> micro_sign_sgd(1e-3).required_statistics["mean_sign"].name
    'mean_sign'
    """
    steps = stepping(learning_rate, weight_decay)
    return _optimizer(MEAN_SIGN, lambda g, given: given["mean_sign"], None, b1, steps)


def _optimizer(
    statistics: Needed,
    averaged: Callable[[Any, Given], Any],
    direction: Callable[[Array], Array] | None,
    b1: float,
    steps: list[Any],
) -> StatisticsTransformation:
    check_decays(b1=b1)

    def update(updates: Any, state: EMAState, params: Any, given: Given) -> tuple[Any, EMAState]:
        m = ema_update(state, averaged(updates, given), b1)
        return jax.tree.map(direction, m.average) if direction else m.average, m

    return chained(statistics, with_statistics(statistics, ema_init, update), *steps)
