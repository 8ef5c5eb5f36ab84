"""The gradient noise scale, tr(Sigma) / |G|**2, by its two parts averaged apart over the steps.

Each part has an unbiased estimate from every batch; their ratio has none, and of one batch it says
little (McCandlish et al., "An Empirical Model of Large-Batch Training", appendix A).
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array

from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value

DECAY = 0.95


class GradientSquare(NamedTuple):
    """The square of the last gradient's norm."""

    value: Array


class Parts(NamedTuple):
    """tr(Sigma), the variance of one example's gradient, and |G|**2, that of the true gradient."""

    variance: Array
    signal: Array


def record_gradient_square() -> optax.GradientTransformationExtraArgs:
    """Keeps |gradient|**2 in its state, and leaves updates as they are: chain it last."""

    def init(params: Any) -> GradientSquare:
        return GradientSquare(jnp.zeros(()))

    def update(
        updates: Any, state: Any, params: Any = None, *, grad: Any, **given: Any
    ) -> tuple[Any, GradientSquare]:
        squares = [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grad)]
        return updates, GradientSquare(jnp.stack(squares).sum())

    return optax.GradientTransformationExtraArgs(init, cast(Any, update))


def begin() -> EMAState:
    """The averages before the first step."""
    return ema_init(Parts(jnp.zeros(()), jnp.zeros(())))


def averaged(averages: EMAState, norms: dict[str, Array], square: Array) -> EMAState:
    """The averages a step later, from the examples' norms [B] in each group of parameters."""
    squares = sum(norm**2 for norm in norms.values())
    return ema_update(averages, parts(jnp.asarray(squares), square), DECAY)


def parts(squares: Array, square: Array) -> Parts:
    """Both parts of one batch, from the examples' |g_b|**2, [B], and |mean of g_b|**2."""
    size = len(squares)
    variance = (jnp.mean(squares) - square) * size / (size - 1)
    return Parts(variance, square - variance / size)


def scale(averages: EMAState) -> Array:
    """The noise scale so far."""
    variance, signal = ema_value(averages)
    return variance / signal
