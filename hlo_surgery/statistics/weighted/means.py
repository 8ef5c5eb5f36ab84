"""Means and sums of the examples' gradients with weights: clipped, or scaled as is wanted."""

import jax
import jax.numpy as jnp

from hlo_surgery.passes.measures.moments import SUMS
from hlo_surgery.statistics.derived import Derived, Per
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number
from hlo_surgery.statistics.weighted.sums import clipped_sums, weighed_sums
from hlo_surgery.statistics.weighted.weights import Of, Weigh


def clipped_mean(max_norm: Number, per: Per = "global", nan_safe: bool = True) -> Derived:
    """The mean of the examples' gradients, each scaled down to norm `max_norm` at most: the
    clipping of DP-SGD.

    The result is like the gradient. Of Abadi et al., "Deep Learning with Differential Privacy",
    algorithm 1.

    Replacing one example moves the sum of the clipped gradients by at most 2 `max_norm`, adding or
    removing one by `max_norm`, over each group of `per` (as in `norms`); the mean is that sum over
    B, and the caller adds the noise. With `is_real` that B, the number of the real, is data, and
    has no such bound: take `clipped_sum`. `max_norm` may be traced, and another one at every step;
    what is not positive and finite then makes the mean NaN. An example whose gradient is not finite
    counts as zero; with `nan_safe=False` it makes the mean NaN, whatever the others are, so that
    the bound holds of finite gradients alone. Accumulated in at least float32; the
    bound holds up to rounding, which is 1e-7 of `max_norm`, and at most 1e-3 where a gradient is
    all but cancelled among its positions. Norms are right wherever they are normal numbers. An
    example whose norm is none, or is so large that its weight max_norm / (B norm) is none, counts
    as zero.
    It refuses what is not provably separable, also with `on_mixing="contribution"`.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.clipped_mean(2.0))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # (-1 + 2) / 2
    0.5
    """
    return clipped_sums("clipped_mean", _means, max_norm, per, nan_safe)


def clipped_sum(max_norm: Number, per: Per = "global", nan_safe: bool = True) -> Derived:
    """The sum of the examples' gradients, each scaled down to norm `max_norm` at most: what noise
    of the Gaussian mechanism is added to.

    Adding or removing one example moves it by at most `max_norm`, over each group of `per`, and
    replacing one by twice that, whatever the number of examples is: of padding too (`is_real`). All
    else is as in `clipped_mean`, which is this over B.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.clipped_sum(2.0))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # -1 + 2
    1.0
    """
    return clipped_sums("clipped_sum", _sums, max_norm, per, nan_safe, SUMS)


def weighted_mean(
    w: Weigh, per: Per = "global", nan_safe: bool = False, of: Of = "norms"
) -> Derived:
    """The mean over the examples of `w_b g_b`, weights [B] being a JAX function of the norms [B].
    The result is like the gradient.

    `weighted_mean(lambda n: 1 / (n + 0.01))` is AUTO-S (Bu et al., "Automatic Clipping"). With
    `of="gram"` w takes the inner products of all pairs of examples instead, [B, B], as of `gram`:
    any combination of the gradients by their angles. Padding has norm and products 0. `per` and
    `nan_safe`, here False by default, are as in `clipped_mean`. Raises TypeError where w is no
    function, and ValueError, when the statistic is computed, where it makes no real array [B].

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> normalised = hs.weighted_mean(lambda norms: 1 / norms)
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=normalised)
    >>> float(f(1.0, jnp.array([1.0, 3.0]))[1])
    1.0
    """
    return weighed_sums("weighted_mean", _means, w, per, nan_safe, of)


def _sums(found: Found, weights: list[jax.Array], finite: jax.Array | None) -> list[jax.Array]:
    return found.weighted(weights, finite)


def _means(found: Found, weights: list[jax.Array], finite: jax.Array | None) -> list[jax.Array]:
    """Weights are divided by the number of examples, and not sums, which might leave the range."""
    shares = [weight / jnp.asarray(found.count, weight.dtype) for weight in weights]
    return found.weighted(shares, finite)
