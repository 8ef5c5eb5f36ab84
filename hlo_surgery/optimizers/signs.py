"""Where to place the sign: before the mean over the examples, after it, or after that over time.

The paper's section "Where should you place the sign in SignSGD?". The average over time is m = b1 m
+ (1 - b1) x from zero, without bias correction; a step subtracts
`learning_rate * direction + weight_decay * params`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.estimators import EMAState, ema_init, ema_update
from hlo_surgery.optimizers.learning_rates import LearningRate, check_decays
from hlo_surgery.optimizers.required import (
    Given,
    StatisticsTransformation,
    Update,
    chained,
    with_statistics,
)
from hlo_surgery.public_function import Function
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
    update = _update(lambda g, given: g, b1, jnp.sign)
    return chained([with_statistics({}, ema_init, update)], learning_rate, weight_decay)


def sign_sgd(
    learning_rate: LearningRate, b1: float = 0.9, *, weight_decay: LearningRate = 0.0
) -> StatisticsTransformation:
    """SignSGD with momentum: the average over time of the sign of each minibatch gradient.

    >>> optimizer = sign_sgd(0.1, b1=0.5)
    >>> updates, _ = optimizer.update(-7.0, optimizer.init(0.0))
    >>> round(float(updates), 4)
    0.05
    """
    update = _update(lambda g, given: jax.tree.map(jnp.sign, g), b1)
    return chained([with_statistics({}, ema_init, update)], learning_rate, weight_decay)


def micro_sign_sgd(
    learning_rate: LearningRate, b1: float = 0.9, *, weight_decay: LearningRate = 0.0
) -> StatisticsTransformation:
    """MicroSignSGD: the average over time of mean_b sign(g_b).

    >>> micro_sign_sgd(1e-3).required_statistics["mean_sign"].name
    'mean_sign'
    """
    update = _update(lambda g, given: given["mean_sign"], b1)
    return chained([with_statistics(MEAN_SIGN, ema_init, update)], learning_rate, weight_decay)


def _update(averaged: Function, b1: float, direction: Function = lambda m: m) -> Update:
    """What averages something over time, and goes along the average's direction."""
    check_decays(b1=b1)

    def update(updates: Any, state: EMAState, params: Any, given: Given) -> tuple[Any, EMAState]:
        m = ema_update(state, averaged(updates, given), b1)
        return jax.tree.map(direction, m.average), m

    return update
