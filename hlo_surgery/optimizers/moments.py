"""mu**2 and sigma**2 of one example's gradient along training, from a transformation's averages.

The gradient noise scale along training, from a transformation's averages of its two parts.
"""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from hlo_surgery import estimators
from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value
from hlo_surgery.optimizers.adam import SECOND_MOMENT, squared_mean
from hlo_surgery.optimizers.learning_rates import check_decays
from hlo_surgery.optimizers.required import (
    Given,
    StatisticsTransformation,
    holds_masked,
    only_state,
    where,
    with_statistics,
    zero_statistic,
)
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.statistics.derived import Statistic
from hlo_surgery.statistics.norms import noise_scale


class MomentsState(NamedTuple):
    """The averages of nu_adam = (mean_b g_b)**2, of nu_micro = mean_b g_b**2, and of 1 / B, NaN
    where nobody said B.
    """

    averages: EMAState


def track_moments(b2: float = 0.999) -> StatisticsTransformation:
    """Keeps averages of both second moments, for `tracked_moments`, and passes updates on.

    Put it first in `optax.chain`, before the optimizer, with the optimizer's b2 (the paper's
    section "Expectation and variance of gradients").

    >>> import optax
    >>> from hlo_surgery.optimizers import adam
    >>> list(optax.chain(track_moments(0.95), adam(1e-3, b2=0.95)).init(0.0)[0]._fields)
    ['averages']
    """

    check_decays(b2=b2)

    def init(params: Any) -> MomentsState:
        zeros = jax.tree.map(jnp.real, params)
        return MomentsState(ema_init((zeros, zeros, jnp.zeros_like(ema_init(zeros).weight))))

    def update(
        updates: Any, state: MomentsState, params: Any, given: Given
    ) -> tuple[Any, MomentsState]:
        squares = squared_mean(widened_tree(updates), given)
        size = jnp.asarray(given.get("batch_size", jnp.nan), state.averages.weight.dtype)
        averages = ema_update(state.averages, (squares, given["second_moment"], 1 / size), b2)
        # A batch of nothing but padding tells nothing.
        return updates, MomentsState(where(size != 0, averages, state.averages))

    return with_statistics(SECOND_MOMENT, init, update)


def tracked_moments(
    opt_state: Any, batch_size: int | None = None, effective_batch_size: float | None = None
) -> dict[str, Any]:
    """Values to log, from the state of an optimizer with one `track_moments`, as pytrees of medians
    over each leaf.

    "mean_squared" and "variance" are the estimates of mu**2 and sigma**2, "ratio" is mu**2 /
    sigma_eff**2 (see `hlo_surgery.estimators.moment_ratio` for `effective_batch_size`), and
    "ratio_median" its median over all parameters. "mean_squared_mean" and "variance_mean" are the
    means over all parameters, as the paper plots them, and "ratio_of_means" is of these: where mu
    is small its estimates are as often negative as large, and so their median is near zero where
    their mean is right. Batches may differ in size: each update is told its own, as
    `hlo_surgery.train_step` does, and B is their harmonic mean, by which the estimates stay
    unbiased; `batch_size` is that of all of them where updates were not told. Runs inside jit.
    Raises ValueError where the state has not exactly one `track_moments`, or B is not known or is
    one.

    >>> import optax
    >>> from hlo_surgery.optimizers import adam
    >>> optimizer = optax.chain(track_moments(b2=0.5), adam(1e-3))
    >>> state = optimizer.init(0.0)
    >>> _, state = optimizer.update(1.0, state, second_moment=5.0)  # of the gradients -1 and 3
    >>> found = tracked_moments(state, batch_size=2)
    >>> [float(found[name]) for name in ("mean_squared", "variance", "ratio", "ratio_of_means")]
    [-3.0, 8.0, -0.75, -0.75]
    """
    state = only_state(opt_state, MomentsState, "of track_moments; chain one before the optimizer")
    nu_adam, nu_micro, inverse = ema_value(state.averages)
    size = _size(inverse, batch_size)
    squared = estimators.mean_squared(nu_adam, nu_micro, size)
    spread = estimators.variance(nu_adam, nu_micro, size)
    ratio = estimators.moment_ratio(nu_adam, nu_micro, size, effective_batch_size)
    mean, deviation = (jnp.mean(ravel_pytree(tree)[0]) for tree in (squared, spread))
    effective = size if effective_batch_size is None else effective_batch_size
    return {
        "mean_squared": estimators.leaf_medians(squared),
        "variance": estimators.leaf_medians(spread),
        "ratio": estimators.leaf_medians(ratio),
        "ratio_median": estimators.global_median(ratio),
        "mean_squared_mean": mean,
        "variance_mean": deviation,
        "ratio_of_means": effective * mean / deviation,
    }


def _size(inverse: Array, batch_size: int | None) -> Array:
    """The harmonic mean of the batches' sizes that updates were told, else the size given."""
    if batch_size is None and not isinstance(inverse, Tracer) and jnp.isnan(inverse):
        raise ValueError(
            "nobody said how many examples the batches had; pass batch_size to update, or to "
            "tracked_moments"
        )
    return jnp.where(jnp.isnan(inverse), jnp.nan if batch_size is None else batch_size, 1 / inverse)


NAME = "noise_scale"
# Of a single example, as a last batch may be, both parts are NaN here and no error.
STATISTICS: dict[str, Statistic] = {
    "global": replace(noise_scale(), refuses_fewer=False),
    "parameter": replace(noise_scale("parameter"), refuses_fewer=False),
}


class NoiseScaleState(NamedTuple):
    """The averages of `tr(Sigma)` and of `|G|**2`."""

    averages: EMAState


def track_noise_scale(
    decay: float = 0.99, per: Literal["global", "parameter"] = "global"
) -> StatisticsTransformation:
    """Keeps averages of both parts of the noise scale, for `tracked_noise_scale`, and passes
    updates on as they are.

    Put it first in `optax.chain`, before the optimizer. `decay` is the weight of the past: a tenth
    of the steps or so is a good length, as both parts change along training. Batches may differ in
    size, and those of fewer than two examples are left out, as are those of which a part is NaN.
    `per`: all parameters together, or each alone. See `hlo_surgery.noise_scale`. Raises ValueError
    for another `per`, and where `optax.masked` hides parameters from "global".

    >>> import optax
    >>> from hlo_surgery.estimators import NoiseScale
    >>> optimizer = optax.chain(track_noise_scale(0.9), optax.adam(1e-3))
    >>> state = optimizer.init(0.0)
    >>> _, state = optimizer.update(2.0, state, noise_scale=NoiseScale(2.0, 3.0), batch_size=2)
    >>> [round(float(x), 4) for x in tracked_noise_scale(state)]
    [2.0, 3.0]
    """
    check_decays(decay=decay)
    if per not in tuple(STATISTICS):
        raise ValueError(f"track_noise_scale takes a per of {' or '.join(STATISTICS)}, not {per!r}")
    statistic = STATISTICS[per]

    def init(params: Any) -> NoiseScaleState:
        return NoiseScaleState(ema_init(zero_statistic(statistic, params)))

    def update(
        updates: Any, state: NoiseScaleState, params: Any, given: Given
    ) -> tuple[Any, NoiseScaleState]:
        if per == "global" and holds_masked(updates):
            raise ValueError(
                "track_noise_scale is of all parameters, and optax.masked hides some: "
                "chain it outside of the mask, or ask for per='parameter'"
            )
        averages = ema_update(state.averages, given[NAME], decay)
        # Nor do microbatches of one example each, however many there are.
        unknown = sum(jnp.isnan(x).any() for x in jax.tree.leaves(given[NAME]))
        tells = (jnp.asarray(given.get("batch_size", 2)) >= 2) & (unknown == 0)
        return updates, NoiseScaleState(where(tells, averages, state.averages))

    return with_statistics({NAME: statistic}, init, update)


def tracked_noise_scale(opt_state: Any) -> Any:
    """The averages so far, from the state of an optimizer with one `track_noise_scale`: a
    `hlo_surgery.estimators.NoiseScale`, or a pytree of them like the parameters.

    Its `.ratio` is the noise scale, in examples, and can be negative early on. NaN before the first
    step. Runs inside jit. Raises ValueError where the state has not exactly one
    `track_noise_scale`.

    >>> state = track_noise_scale().init(0.0)
    >>> float(tracked_noise_scale(state).ratio)
    nan
    """
    of = "of track_noise_scale; chain one before the optimizer"
    return ema_value(only_state(opt_state, NoiseScaleState, of).averages)
