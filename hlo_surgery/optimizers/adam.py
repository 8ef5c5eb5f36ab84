"""Adam and its variants: second moments of the examples' gradients, of sigma**2 or of mu**2.

All divide the average gradient m by the root of an average v (the paper's algorithm "Various Adam
algorithms"): m and v are exponential moving averages with bias correction, and a step subtracts
`learning_rate * m / (sqrt(v + eps_root) + eps) + weight_decay * params`.

An estimate of mu**2 can be negative, and counts as zero where the average is (the paper's MSQ). The
paper's text has eps outside the root, as in optax and by default here; its pseudocode inside, which
is `eps_root`. Where text and pseudocode have another sign of the estimates, the text is unbiased.

An estimate of sigma**2 or mu**2 can be zero where m is not: where all examples agree, as for what a
regularizer alone moves, or where noise hides the mean. A step there is of m / eps learning rates.
`max_ratio`, which is not the paper's, bounds it: MicroAdamVar and MicroAdamMSQ then divide by
`max(sqrt(v + eps_root) + eps, |m| / max_ratio)`, and no step is of more than `max_ratio` learning
rates. One example's gradient has a signal-to-noise ratio beyond 32 only where there is no noise, so
that `max_ratio=32` changes little else.

`clip_norm` scales the gradient to this global norm at most. The same factor then scales each
example's gradient, so that the second moment has its square; clipping that is chained before would
scale the gradient alone, and is refused where the optimizer takes a second moment.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from hlo_surgery import estimators
from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value
from hlo_surgery.optimizers.learning_rates import LearningRate, check_bound, check_decays
from hlo_surgery.optimizers.required import (
    Given,
    Needed,
    StatisticsTransformation,
    batch_size,
    chained,
    where,
    with_statistics,
)
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.passes.measures.moments import at_least, squared_magnitude
from hlo_surgery.statistics.derived import Statistic
from hlo_surgery.statistics.elementwise import second_moment

SECOND_MOMENT: dict[str, Statistic] = {"second_moment": second_moment()}


class Moment(NamedTuple):
    """What v averages: `of(gradient, given)`. An estimate can be zero where m is not, and takes two
    examples.
    """

    of: Callable[[Any, Given], Any]
    statistics: Needed = SECOND_MOMENT
    is_estimate: bool = False


class AdamState(NamedTuple):
    """The averages of the gradient and of its second moment."""

    m: EMAState
    v: EMAState


def adam(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    weight_decay: LearningRate = 0.0,
    clip_norm: float | None = None,
) -> StatisticsTransformation:
    """Adam: v averages `(mean_b g_b)**2`. `optax.adam` with weight decay that the learning rate
    does not multiply.

    >>> optimizer = adam(0.1)
    >>> updates, _ = optimizer.update(2.0, optimizer.init(0.0))
    >>> round(float(updates), 4)
    -0.1
    """
    directions = averaging(OF_THE_MEAN, b1, b2, eps, eps_root, clip_norm)
    return chained([directions], learning_rate, weight_decay)


def micro_adam(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    weight_decay: LearningRate = 0.0,
    clip_norm: float | None = None,
) -> StatisticsTransformation:
    """MicroAdam: v averages `mean_b g_b**2`, which is `mu**2 + sigma**2` at any batch size.

    >>> micro_adam(1e-3).required_statistics["second_moment"].name
    'second_moment'
    """
    moment = Moment(lambda _, given: given["second_moment"])
    directions = averaging(moment, b1, b2, eps, eps_root, clip_norm)
    return chained([directions], learning_rate, weight_decay)


def micro_adam_var(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    weight_decay: LearningRate = 0.0,
    clip_norm: float | None = None,
    max_ratio: float | None = None,
) -> StatisticsTransformation:
    """MicroAdamVar: v averages the unbiased estimate of `sigma**2` (`estimators.variance`) of
    batches of two or more; before the first of these it takes no step.

    With `max_ratio`, recommended and not the paper's, no step is of more than so many learning
    rates: without, one is of m / eps where all examples agree. Raises ValueError where it is not
    positive and finite.

    >>> optimizer = micro_adam_var(0.1)
    >>> updates, _ = optimizer.update(
    ...     1.0, optimizer.init(0.0), second_moment=5.0, batch_size=2
    ... )
    >>> round(float(updates), 4)  # of -1 and 3: 0.1 / sqrt(8)
    -0.0354
    """
    moment = _estimated(estimators.variance)
    directions = averaging(moment, b1, b2, eps, eps_root, clip_norm, max_ratio)
    return chained([directions], learning_rate, weight_decay)


def micro_adam_msq(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    *,
    weight_decay: LearningRate = 0.0,
    clip_norm: float | None = None,
    max_ratio: float | None = None,
) -> StatisticsTransformation:
    """MicroAdamMSQ: v averages the unbiased estimate of `mu**2` (`estimators.mean_squared`) of
    batches of two or more; before the first of these it takes no step.

    The estimate can be negative. It is averaged as it is, so that it stays unbiased; where the
    average is negative, v is zero, and a step is of m / eps learning rates. The paper clips the
    gradient to where m is about eps. With `max_ratio`, recommended and not the paper's, no step is
    of more than so many. Raises ValueError where that is not positive and finite.

    >>> optimizer = micro_adam_msq(0.1)
    >>> updates, _ = optimizer.update(
    ...     2.0, optimizer.init(0.0), second_moment=5.0, batch_size=2
    ... )
    >>> round(float(updates), 4)  # of 1 and 3: 0.1 * 2 / sqrt(3)
    -0.1155
    """
    moment = _estimated(estimators.mean_squared)
    directions = averaging(moment, b1, b2, eps, eps_root, clip_norm, max_ratio)
    return chained([directions], learning_rate, weight_decay)


def squared_mean(gradient: Any, given: Given) -> Any:
    """The paper's nu_adam."""
    return jax.tree.map(squared_magnitude, gradient)


OF_THE_MEAN = Moment(squared_mean, {})


def _estimated(estimator: Callable[..., Any]) -> Moment:
    """An unbiased estimate; of fewer than two examples there is none worth keeping."""

    def of(gradient: Any, given: Given) -> Any:
        size = batch_size(given)
        size = max(size, 2) if isinstance(size, int) else jnp.maximum(size, 2)
        return estimator(squared_mean(gradient, given), given["second_moment"], size)

    return Moment(of, is_estimate=True)


def averaging(
    moment: Moment,
    b1: float,
    b2: float,
    eps: float,
    eps_root: float,
    clip_norm: float | None = None,
    max_ratio: float | None = None,
) -> StatisticsTransformation:
    """Adam's directions, without a learning rate."""
    check_decays(b1=b1, b2=b2)
    check_bound("clip_norm", clip_norm)
    check_bound("max_ratio", max_ratio)

    def init(params: Any) -> AdamState:
        return AdamState(ema_init(params), ema_init(jax.tree.map(jnp.real, params)))

    def update(updates: Any, state: AdamState, params: Any, given: Given) -> tuple[Any, AdamState]:
        gradient, given = _clipped(widened_tree(updates), given, clip_norm)
        m = ema_update(state.m, gradient, b1)
        v = ema_update(state.v, moment.of(gradient, given), b2)
        if not moment.is_estimate:
            return jax.tree.map(divided, ema_value(m), ema_value(v)), AdamState(m, v)
        # One example alone, as a short last batch may be, has none.
        v = where(jnp.asarray(batch_size(given)) >= 2, v, state.v)
        directions = jax.tree.map(divided, ema_value(m), ema_value(v))
        # Before the first one nothing is known to divide by: no step.
        return jax.tree.map(lambda d: jnp.where(v.weight > 0, d, 0), directions), AdamState(m, v)

    def divided(m: Array, v: Array) -> Array:
        root = jnp.sqrt(jnp.maximum(v, 0) + eps_root) + eps
        return m / (root if max_ratio is None else jnp.maximum(root, jnp.abs(m) / max_ratio))

    return with_statistics(moment.statistics, init, update)


def _clipped(gradient: Any, given: Given, clip_norm: float | None) -> tuple[Any, Given]:
    """The gradient and its second moment, as if all examples were scaled as their mean is."""
    if clip_norm is None or not jax.tree.leaves(gradient):
        return gradient, given
    factor = clip_norm / at_least(optax.tree.norm(widened_tree(gradient)), clip_norm)
    squares = jax.tree.map(lambda x: x * factor**2, widened_tree(given.get("second_moment")))
    return jax.tree.map(lambda g: g * factor, gradient), {**given, "second_moment": squares}
