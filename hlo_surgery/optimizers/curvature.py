"""Told: an optimizer's state, with the curvature that was found of a batch.

Inverses: of damped Kronecker factors, and a gradient between them.

K-FAC: the gradient between the inverses of two averaged factors for each parameter.

Sophia: the average gradient over an average of the curvature's diagonal, clipped.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.estimators import EMAState, ema_init, ema_update, ema_value
from hlo_surgery.optimizers.learning_rates import LearningRate, check_decays
from hlo_surgery.optimizers.required import (
    Given,
    StatisticsTransformation,
    chained,
    only_state,
    with_statistics,
    without_masked,
)
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.passes.measures.kronecker import (
    Eigenbases,
    KroneckerFactors,
    fits,
    is_factors,
    stacked_axes,
)
from hlo_surgery.statistics.derived import positive

EXACT: Any = {"precision": "highest"}
NOT_LIKE = (
    "the curvature is not like the parameters; it is what hlo_surgery.grad finds by the "
    "same parameters: second_moment() for sophia, kronecker_factors() for kfac"
)


def with_curvature(opt_state: Any, curvature: Any) -> Any:
    """The state of an optimizer, told the curvature of a batch, every few steps: of `sophia` the
    diagonal, like the gradient, as `second_moment` returns it; of `kfac` what `kronecker_factors`
    does.

    It finds the optimizer's own state within that of `optax.chain` and its like, and runs inside
    jit. Raises ValueError where the state has not exactly one that takes curvature, or where this
    is not like the parameters.

    >>> import jax.numpy as jnp
    >>> from hlo_surgery.optimizers import sophia
    >>> optimizer = sophia(0.1, b1=0.0, b2=0.0, gamma=1.0)
    >>> state = with_curvature(optimizer.init(jnp.ones(2)), jnp.array([4.0, 0.1]))
    >>> updates, state = optimizer.update(jnp.array([2.0, 2.0]), state)
    >>> updates.tolist()  # 2 / 4, and 1 at most
    [-0.05000000074505806, -0.10000000149011612]
    """
    said = "that take curvature, not one; it is of an optimizer with one sophia or kfac"
    own = only_state(opt_state, KfacState | SophiaState, said)
    return jax.tree.map(
        lambda x: x.told(curvature) if x is own else x, opt_state, is_leaf=lambda x: x is own
    )


def inverses_of(found: Any, damping: Array) -> Any:
    """Inverses like the factors, damped; of a diagonal like the parameter one over it.

    >>> left, right = inverses_of(KroneckerFactors(4 * jnp.eye(2), jnp.eye(3)), jnp.array(1.0))
    >>> two = lambda side: [round(float(x), 2) for x in jnp.diagonal(side)]
    >>> two(left), two(right)  # 1 / (4 + 2), 1 / (1 + 1 / 2)
    ([0.17, 0.17], [0.67, 0.67, 0.67])
    """
    if not isinstance(found, KroneckerFactors):
        return 1 / (found + damping)
    stacked = stacked_axes(found)
    left, right = (_mean_eigenvalue(side, stacked) for side in found)
    positive = (left > 0) & (right > 0)
    pi = jnp.sqrt(jnp.where(positive, left, 1) / jnp.where(positive, right, 1))
    root = jnp.sqrt(damping)
    shifts = pi * root, root / pi
    return KroneckerFactors(
        *(_inverse(side, shift, stacked) for side, shift in zip(found, shifts, strict=True))
    )


def preconditioned(gradient: Array, inverses: Any) -> Array:
    """The gradient between the inverses, or times them where they are like it."""
    if not isinstance(inverses, KroneckerFactors):
        return gradient * inverses
    stacked = stacked_axes(inverses)
    sizes = [side.shape[-1] for side in inverses]
    matrix = gradient.reshape(*gradient.shape[:stacked], *sizes)
    for side in inverses:  # Both are symmetric, so that the second is the first of the transposed.
        is_diagonal = side.ndim == stacked + 1
        found = side[..., None] * matrix if is_diagonal else jnp.matmul(side, matrix, **EXACT)
        matrix = jnp.matrix_transpose(found)
    return matrix.reshape(gradient.shape)


def _mean_eigenvalue(side: Array, stacked: int) -> Array:
    if side.ndim > stacked + 1:
        side = jnp.diagonal(side, axis1=-2, axis2=-1)
    return jnp.mean(side, -1)


def _inverse(side: Array, shift: Array, stacked: int) -> Array:
    if side.ndim == stacked + 1:
        return 1 / (side + shift[..., None])
    return jnp.linalg.inv(side + shift[..., None, None] * jnp.eye(side.shape[-1], dtype=side.dtype))


class KfacState(NamedTuple):
    """The momentum; the factors' average and the inverses of their damped values, None before
    there are any; b2 and the damping.
    """

    momentum: Any
    factors: EMAState | None
    inverses: Any
    decay: Array
    damping: Array

    def told(self, curvature: Any) -> "KfacState":
        """The state with one more batch's factors in their average, inverted anew."""
        own = without_masked(self.momentum, curvature, _fits, NOT_LIKE)
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
    check_decays(b1=b1, b2=b2)
    positive("kfac", "damping", damping)

    def init(params: Any) -> KfacState:
        zeros = ema_init(params)
        numbers = (jnp.asarray(x, zeros.weight.dtype) for x in (b2, damping))
        return KfacState(zeros.average, None, None, *numbers)

    def update(updates: Any, state: KfacState, params: Any, given: Given) -> tuple[Any, KfacState]:
        wide = widened_tree(updates)
        found = wide
        if state.inverses is not None:
            found = jax.tree.map(preconditioned, wide, state.inverses)
        momentum = jax.tree.map(lambda v, u: b1 * v + u, state.momentum, found)
        return momentum, state._replace(momentum=momentum)

    return chained([with_statistics({}, init, update)], learning_rate, weight_decay)


def _fits(momentum: Array, found: Any) -> bool:
    if isinstance(found, Eigenbases):
        return False
    return fits(momentum, found) if is_factors(found) else _is_diagonal(momentum, found)


class SophiaState(NamedTuple):
    """The averages of the gradient and of the curvature's diagonal, and b2."""

    momentum: EMAState
    diagonal: EMAState
    decay: Array

    def told(self, curvature: Any) -> "SophiaState":
        """The state with one more diagonal in its average."""
        own = without_masked(self.momentum.average, curvature, _is_diagonal, NOT_LIKE)
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
    check_decays(b1=b1, b2=b2)
    positive("sophia", "gamma", gamma)
    positive("sophia", "eps", eps)

    def init(params: Any) -> SophiaState:
        real = jax.tree.map(jnp.real, params)
        averages = ema_init(params), ema_init(real)
        return SophiaState(*averages, jnp.asarray(b2, averages[1].weight.dtype))

    def update(
        updates: Any, state: SophiaState, params: Any, given: Given
    ) -> tuple[Any, SophiaState]:
        momentum = ema_update(state.momentum, updates, b1)

        def direction(m: Array, h: Array) -> Array:
            return jnp.clip(m / jnp.maximum(gamma * h, eps), -1, 1)

        found = jax.tree.map(direction, momentum.average, state.diagonal.average)
        return found, state._replace(momentum=momentum)

    return chained([with_statistics({}, init, update)], learning_rate, weight_decay)


def _is_diagonal(momentum: Array, found: Any) -> bool:
    return jnp.shape(found) == momentum.shape
