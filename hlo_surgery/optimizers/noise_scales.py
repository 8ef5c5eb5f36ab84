"""The gradient noise scale along training, from a transformation's averages of its two parts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value
from hlo_surgery.optimizers.hyperparameters import check_decay
from hlo_surgery.optimizers.required import (
    StatisticsTransformation,
    is_masked,
    with_statistics,
    zero_statistic,
)
from hlo_surgery.statistics import noise
from hlo_surgery.statistics.derived import Statistic

NAME = "noise_scale"
# Of a single example, as a last batch may be, both parts are NaN here and no error.
STATISTICS: dict[str, Statistic] = {
    "global": replace(noise.noise_scale(), refuses_fewer=False),
    "parameter": replace(noise.noise_scale("parameter"), refuses_fewer=False),
}


class NoiseScaleState(NamedTuple):
    """The averages of `tr(Sigma)` and of `|G|**2`."""

    averages: EMAState


def track_noise_scale(
    decay: float = 0.99, per: Literal["global", "parameter"] = "global"
) -> StatisticsTransformation:
    """Keeps averages of both parts of the noise scale for `noise_scale`, and passes updates on as
    they are.

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
    >>> [round(float(x), 4) for x in noise_scale(state)]
    [2.0, 3.0]
    """
    check_decay("decay", decay)
    if not isinstance(per, str) or per not in STATISTICS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"track_noise_scale takes a per of {' or '.join(STATISTICS)}, not {per!r}")
    statistic = STATISTICS[per]

    def init(params: Any) -> NoiseScaleState:
        return NoiseScaleState(ema_init(zero_statistic(statistic, params)))

    def update(
        updates: Any, state: NoiseScaleState, params: Any, given: Mapping[str, Any]
    ) -> tuple[Any, NoiseScaleState]:
        if per == "global" and any(map(is_masked, jax.tree.leaves(updates, is_leaf=is_masked))):
            raise ValueError(
                "track_noise_scale is of all parameters, and optax.masked hides some: "
                "chain it outside of the mask, or ask for per='parameter'"
            )
        averages = ema_update(state.averages, given[NAME], decay)
        # Nor do microbatches of one example each, however many there are.
        unknown = sum(jnp.isnan(x).any() for x in jax.tree.leaves(given[NAME]))
        tells = (jnp.asarray(given.get("batch_size", 2)) >= 2) & (unknown == 0)
        kept = jax.tree.map(lambda new, old: jnp.where(tells, new, old), averages, state.averages)
        return updates, NoiseScaleState(kept)

    return with_statistics({NAME: statistic}, init, update)


def noise_scale(opt_state: Any) -> Any:
    """The averages so far, from the state of an optimizer with one `track_noise_scale`: a
    `hlo_surgery.estimators.NoiseScale`, or a pytree of them like the parameters.

    Its `.ratio` is the noise scale, in examples, and can be negative early on. NaN before the first
    step. Runs inside jit. Raises ValueError where the state has not exactly one
    `track_noise_scale`.

    >>> state = track_noise_scale().init(0.0)
    >>> float(noise_scale(state).ratio)
    nan
    """
    found = [s for s in jax.tree.leaves(opt_state, is_leaf=_is_noise_scale) if _is_noise_scale(s)]
    if len(found) != 1:
        raise ValueError(
            f"the state has {len(found)} of track_noise_scale; chain one before the optimizer"
        )
    return ema_value(found[0].averages)


def _is_noise_scale(x: Any) -> bool:
    return isinstance(x, NoiseScaleState)
