"""Spreads: how far the examples' gradients lie apart, element by element."""

import math

import jax
import jax.numpy as jnp

from hlo_surgery.passes.measures.measures import Variance
from hlo_surgery.passes.measures.moments import unbiased as unbiased_factor
from hlo_surgery.statistics.derived import Derived, Groups
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import flag


def variance(unbiased: bool = True) -> Derived:
    """The variance of the examples' gradients, elementwise: the mean of `|g_b - mean|**2`, times
    `B / (B - 1)` if unbiased.

    The result is like the gradient.

    Every gradient is centred before it is squared, so that a spread far below the mean is as
    precise as the gradients are. The unbiased one needs two examples; with one, ValueError is
    raised.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.variance())
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # of the gradients -1 and 3
    8.0
    """
    flag("variance", "unbiased", unbiased)

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        scale = unbiased_factor(found.count) if unbiased else 1.0
        return [scale * spread for spread in found.of(measure)]

    measure = Variance()
    return Derived(
        "variance" if unbiased else "variance(False)", combine, (measure,), least=1 + unbiased
    )


def snr() -> Derived:
    """`|mean| / standard deviation` of the examples' gradients, elementwise.

    The result is like the gradient.

    Roulet and Agarwala, appendix on SNR.

    The deviation is the root of `variance`. Where examples do not differ but by rounding, the ratio
    is huge or inf. It is NaN where the variance is too large for its dtype, or so small that it may
    have been rounded to zero.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.snr())
    >>> round(float(f(1.0, jnp.array([-1.0, 3.0]))[1]), 6)  # 1 / sqrt(8)
    0.353553
    """
    spread = variance()

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        pairs = zip(found.mean(), spread.combine(found, groups), strict=True)
        return [_in_deviations(mean, variance) for mean, variance in pairs]

    return Derived("snr", combine, spread.measures, about_mean=True, least=2)


def _in_deviations(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """|mean| over the root of a variance, NaN where that is out of the range of its dtype."""
    limits, size = jnp.finfo(variance.dtype), jnp.abs(mean).astype(variance.dtype)
    # Below this a spread as small as the mean's own roundings has no normal square.
    smallest = math.sqrt(float(limits.tiny)) / float(limits.eps)
    lost = (variance < limits.tiny) & (size < smallest)
    known = jnp.isfinite(variance) & ~lost
    return jnp.where(known, size / jnp.sqrt(variance), jnp.nan)
