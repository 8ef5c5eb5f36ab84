"""mu**2 and sigma**2 of one example's gradient along training, from averages that a transformation keeps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from hlo_surgery import estimators
from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value
from hlo_surgery.optimizers.adam import SECOND_MOMENT, squared_mean
from hlo_surgery.optimizers.required import StatisticsTransformation, with_statistics
from hlo_surgery.passes.element_types import widened_tree


class MomentsState(NamedTuple):
    """The average of the pair nu_adam = (mean_b g_b)**2 and nu_micro = mean_b g_b**2."""

    averages: EMAState


def track_moments(b2: float = 0.999) -> StatisticsTransformation:
    """Keeps averages of both second moments for `moments`, and passes updates on as they are.

    Put it first in `optax.chain`, before the optimizer, with the optimizer's b2 (the paper's section "Expectation and
    variance of gradients").
    """

    def init(params: Any) -> MomentsState:
        zeros = jax.tree.map(jax.numpy.real, params)
        return MomentsState(ema_init((zeros, zeros)))

    def update(updates: Any, state: MomentsState, params: Any, given: Mapping[str, Any]) -> tuple[Any, MomentsState]:
        squares = squared_mean(widened_tree(updates), given)
        return updates, MomentsState(ema_update(state.averages, (squares, given["second_moment"]), b2))

    return with_statistics(SECOND_MOMENT, init, update)


def moments(opt_state: Any, batch_size: int, effective_batch_size: float | None = None) -> dict[str, Any]:
    """Values to log, from the state of an optimizer with one `track_moments`, as pytrees of medians over each leaf.

    "mean_squared" and "variance" are the estimates of mu**2 and sigma**2, "ratio" is mu**2 / sigma_eff**2 (see
    `hlo_surgery.estimators.moment_ratio` for `effective_batch_size`), and "ratio_median" its median over all
    parameters. Runs inside jit. Raises ValueError where the state has not exactly one `track_moments`.

    >>> import optax
    >>> from hlo_surgery.optimizers import adam
    >>> optimizer = optax.chain(track_moments(b2=0.5), adam(1e-3))
    >>> _, state = optimizer.update(1.0, optimizer.init(0.0), second_moment=5.0)  # of the gradients -1 and 3
    >>> {name: float(value) for name, value in moments(state, batch_size=2).items()}
    {'mean_squared': -3.0, 'variance': 8.0, 'ratio': -0.75, 'ratio_median': -0.75}
    """
    found = [s for s in jax.tree.leaves(opt_state, is_leaf=_is_moments) if _is_moments(s)]
    if len(found) != 1:
        raise ValueError(f"the state has {len(found)} of track_moments; chain one before the optimizer")
    nu_adam, nu_micro = ema_value(found[0].averages)
    ratio = estimators.moment_ratio(nu_adam, nu_micro, batch_size, effective_batch_size)
    return {
        "mean_squared": estimators.leaf_medians(estimators.mean_squared(nu_adam, nu_micro, batch_size)),
        "variance": estimators.leaf_medians(estimators.variance(nu_adam, nu_micro, batch_size)),
        "ratio": estimators.leaf_medians(ratio),
        "ratio_median": estimators.global_median(ratio),
    }


def _is_moments(x: Any) -> bool:
    return isinstance(x, MomentsState)
