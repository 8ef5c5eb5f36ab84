"""K-FAC: the gradient between the inverses of two averaged factors for each parameter."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value
from hlo_surgery.optimizers.curvature.inverses import inverses_of, preconditioned
from hlo_surgery.optimizers.curvature.told import like_parameters
from hlo_surgery.optimizers.hyperparameters import check_decay
from hlo_surgery.optimizers.learning_rates import LearningRate, stepping
from hlo_surgery.optimizers.required import StatisticsTransformation, chained, with_statistics
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.passes.measures.kronecker import Eigenbases, fits, is_factors
from hlo_surgery.statistics.derived import positive


class KfacState(NamedTuple):
    """The momentum; the factors' average and the inverses of their damped values, None before
    there are any; b2 and the damping.
    """

    momentum: Any
    factors: EMAState | None
    inverses: Any
    decay: jax.Array
    damping: jax.Array

    def told(self, curvature: Any) -> "KfacState":
        """The state with one more batch's factors in their average, inverted anew."""
        own = like_parameters(self.momentum, curvature, _fits)
        before = ema_init(own) if self.factors is None else self.factors
        factors = ema_update(before, own, self.decay)
        inverses = jax.tree.map(
            lambda found: inverses_of(found, self.damping), ema_value(factors), is_leaf=is_factors
        )
        return self._replace(factors=factors, inverses=inverses)


def kfac(
    learning_rate: LearningRate,
    b1: float = 0.9,
    b2: float = 0.95,
    damping: float = 1e-3,
    *,
    weight_decay: LearningRate = 0.0,
) -> StatisticsTransformation:
    """K-FAC: a step subtracts `learning_rate * v`, with `v = b1 v + L g R`, L and R the inverses of
    the damped factors of each parameter.

    `with_curvature` tells of factors, which are averaged with b2 and bias correction, and inverts
    them: every tenth step, say, of `kronecker_factors` of a loss on `sampled_labels`. Until then L
    and R are one. With the damping e, `left + pi sqrt(e) I` and `right + sqrt(e) / pi I` are
    inverted, where `pi**2` is the mean of left's eigenvalues over that of right's (Martens and
    Grosse, "Optimizing Neural Networks with Kronecker-Factored Approximate Curvature", sections 6.3
    and 6.6), so that no step depends on how the factors share a scale. A parameter whose curvature
    is an array like it, as of `second_moment`, is divided by that, plus the damping: for tables
    whose factors would be too large, and for what has none. Chain `optax.clip_by_global_norm`
    behind it where steps grow too long.

    >>> import hlo_surgery as hs
    >>> from hlo_surgery.optimizers import with_curvature
    >>> loss = lambda w, x: jnp.mean(jnp.sum((x @ w) ** 2, -1) / 2)
    >>> f = hs.grad(loss, batch_argnums=1, statistics=hs.kronecker_factors())
    >>> w, x = jnp.eye(2), jnp.array([[2.0, 0.0], [0.0, 2.0]])
    >>> optimizer = kfac(1.0, damping=1e-8)
    >>> gradient, factors = f(w, x)
    >>> state = with_curvature(optimizer.init(w), factors)
    >>> updates, state = optimizer.update(gradient, state)
    >>> jnp.round(updates, 2).tolist()  # the gradient 2 I, between two factors 2 I
    [[-0.5, -0.0], [-0.0, -0.5]]
    """
    check_decay("b1", b1)
    check_decay("b2", b2)
    positive("kfac", "damping", damping)

    def init(params: Any) -> KfacState:
        zeros = ema_init(params)
        numbers = (jnp.asarray(x, zeros.weight.dtype) for x in (b2, damping))
        return KfacState(zeros.average, None, None, *numbers)

    def update(
        updates: Any, state: KfacState, params: Any, given: Mapping[str, Any]
    ) -> tuple[Any, KfacState]:
        wide = widened_tree(updates)
        found = wide
        if state.inverses is not None:
            found = jax.tree.map(preconditioned, wide, state.inverses)
        momentum = jax.tree.map(lambda v, u: b1 * v + u, state.momentum, found)
        return momentum, state._replace(momentum=momentum)

    return chained({}, with_statistics({}, init, update), *stepping(learning_rate, weight_decay))


def _fits(momentum: jax.Array, found: Any) -> bool:
    if is_factors(found):
        return fits(momentum, found) and not isinstance(found, Eigenbases)
    return jnp.shape(found) == momentum.shape
