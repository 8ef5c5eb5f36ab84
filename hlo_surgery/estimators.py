"""Estimators of Roulet and Agarwala from batch statistics: mu**2, sigma**2, ratio, SNR of sign.

mu and sigma are the mean and the standard deviation of one example's gradient g_b, elementwise. Two
statistics of a batch of B examples determine both: `nu_adam` = (mean g)**2 and `nu_micro` = mean
g**2 (`hlo_surgery.second_moment`). Every function here takes pytrees of arrays of the same shapes,
computes in at least float32, and runs inside jit. `batch_size` may be a number that is known at run
time alone; what takes two examples is then not finite for fewer.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.scipy.special import erf, log_ndtr

from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.measures.moments import at_least

BatchSize = int | Array


def mean_squared(nu_adam: Any, nu_micro: Any, batch_size: BatchSize) -> Any:
    """The unbiased estimate of `mu**2`: `(nu_adam - nu_micro / B) / (1 - 1/B)`, elementwise.

    From the paper's section "Expectation and variance of gradients". (Its pseudocode of
    MicroAdamMSQ computes the variance instead.) It can be negative. It is linear, so applied to
    EMAs of nu_adam and nu_micro it gives the EMA of the estimates. Raises ValueError for a batch of
    one example, of which neither is known.

    >>> mean_squared(1.0, 5.0, batch_size=2)  # of the gradients -1 and 3
    Array(-3., dtype=float32)
    """
    size = _at_least_two(batch_size)
    return _map(lambda adam, micro: (adam - micro / size) / (size - 1) * size, nu_adam, nu_micro)


def variance(nu_adam: Any, nu_micro: Any, batch_size: BatchSize) -> Any:
    """The unbiased estimate of `sigma**2`: `(nu_micro - nu_adam) / (1 - 1/B)`, elementwise: numpy's
    var with ddof=1.

    From the same equation as `mean_squared`; linear likewise, so it applies to EMAs too. nu_micro
    >= nu_adam but for rounding (about 1e-7 of nu_micro), so the result is kept from falling below
    zero. (The paper's pseudocode of MicroAdamVar has B / (1 - B) for the factor, which makes it
    negative.) Raises ValueError for a batch of one example.

    >>> variance(1.0, 5.0, batch_size=2)  # of the gradients -1 and 3
    Array(8., dtype=float32)
    """
    size = _at_least_two(batch_size)
    return _map(
        lambda adam, micro: at_least((micro - adam) / (size - 1) * size, 0), nu_adam, nu_micro
    )


def moment_ratio(
    nu_adam: Any, nu_micro: Any, batch_size: BatchSize, effective_batch_size: float | None = None
) -> Any:
    """The ratio `mu**2 / sigma_eff**2` of the two estimates, elementwise, with `sigma_eff**2 =
    sigma**2 / B_eff`.

    These are the two parts of an optimizer's preconditioner, in the paper's section "Expectation
    and variance of gradients": B_eff is the batch size B for Adam (the default), as nu_adam is
    `mu**2 + sigma**2 / B` on average, and 1 for MicroAdam, as nu_micro is `mu**2 + sigma**2`. Of
    one batch it is noisy and, as a ratio, biased; the paper takes it of EMAs of nu_adam and
    nu_micro (`ema_update`). Where every gradient is zero it is NaN, as 0/0.

    >>> moment_ratio(5.0, 6.0, batch_size=2)
    Array(4., dtype=float32)
    >>> moment_ratio(5.0, 6.0, batch_size=2, effective_batch_size=1)
    Array(2., dtype=float32)
    """
    squared = mean_squared(nu_adam, nu_micro, batch_size)
    spread = variance(nu_adam, nu_micro, batch_size)
    effective = batch_size if effective_batch_size is None else effective_batch_size
    if effective_batch_size is not None and effective_batch_size <= 0:
        raise ValueError(f"effective_batch_size must be positive, not {effective_batch_size!r}")
    return _map(lambda mu2, sigma2: effective * mu2 / sigma2, squared, spread)


class NoiseScale(NamedTuple):
    """The two parts of the gradient noise scale, or averages of them: `variance` is `tr(Sigma)`,
    that of one example's gradient summed over its elements, and `squared_mean` is `|G|**2`, the
    square of the true gradient's norm.
    """

    variance: Array
    squared_mean: Array

    @property
    def ratio(self) -> Array:
        """The noise scale `tr(Sigma) / |G|**2`, in examples: the batch size at which noise and
        signal are as large (McCandlish et al., "An Empirical Model of Large-Batch Training",
        section 2.2).
        """
        return self.variance / self.squared_mean


def noise_scale_of_sizes(
    small: Array | float, large: Array | float, small_size: BatchSize, large_size: BatchSize
) -> NoiseScale:
    """Unbiased estimates of both parts from `|G_B|**2`, the squared norms of the mean gradients of
    batches of two sizes, such as of microbatches (a mean over them is best) and of all.

    `(|G_small|**2 - |G_large|**2) / (1 / small_size - 1 / large_size)` is `tr(Sigma)`
    (McCandlish et al., appendix A.1). It needs no gradient of a single example. Raises ValueError
    where the sizes are not in that order.

    >>> noise_scale_of_sizes(5.0, 4.0, small_size=1, large_size=2)  # of the gradients 1 and 3
    NoiseScale(variance=Array(2., dtype=float32), squared_mean=Array(3., dtype=float32))
    """
    known = not isinstance(small_size, Tracer) and not isinstance(large_size, Tracer)
    if known and not 0 < small_size < large_size:
        raise ValueError(
            f"noise_scale_of_sizes takes a small size and a larger one, not {small_size!r} and "
            f"{large_size!r}"
        )
    of_small, of_large = _in_float32(small), _in_float32(large)
    factor = small_size / (large_size - small_size) * large_size
    variance = (of_small - of_large) * factor
    return NoiseScale(variance, of_large - variance / large_size)


class EMAState(NamedTuple):
    """An exponential moving average without bias correction, and `weight`, that of ones."""

    average: Any
    weight: Array


def ema_init(values: Any) -> EMAState:
    """The state before the first update: zeros like `values`, any pytree, in at least float32.

    >>> state = ema_init((0.0, 0.0))
    >>> for nu_adam, nu_micro in [(5.0, 6.0), (1.0, 5.0)]:
    ...     state = ema_update(state, (nu_adam, nu_micro), decay=0.5)
    >>> [round(float(x), 4) for x in ema_value(state)]  # weights 1/3 and 2/3
    [2.3333, 5.3333]
    >>> round(float(moment_ratio(*ema_value(state), batch_size=2)), 4)
    -0.2222
    """
    zeros = _map(jnp.zeros_like, values)
    kinds = [jnp.real(leaf).dtype for leaf in jax.tree.leaves(zeros)]
    return EMAState(zeros, jnp.zeros((), jnp.result_type(jnp.float32, *kinds)))


def ema_update(state: EMAState, values: Any, decay: float | Array) -> EMAState:
    """The state a step later: `average = decay * average + (1 - decay) * values`, `0 <= decay < 1`.

    With the pair (nu_adam, nu_micro) for `values` and the optimizer's b2 for `decay`, this is the
    average that the paper's estimators are applied to.

    >>> state = ema_update(ema_init(0.0), 4.0, decay=0.75)
    >>> float(state.average), float(state.weight)
    (1.0, 0.25)
    """
    average = _map(lambda old, new: decay * old + (1 - decay) * new, state.average, values)
    return EMAState(average, decay * state.weight + (1 - decay))


def ema_value(state: EMAState) -> Any:
    """The bias-corrected average: `average / (1 - decay**t)` after t updates, NaN before.

    >>> float(ema_value(ema_update(ema_init(0.0), 4.0, decay=0.75)))
    4.0
    """
    return _map(lambda average: average / state.weight, state.average)


def leaf_medians(values: Any) -> Any:
    """The median of every leaf's elements, a pytree of scalars, such as the ratio's for each layer.

    Elements that are NaN are left out: the ratio has no value for a parameter that no example
    reached.

    >>> leaf_medians({"w": jnp.array([[1.0, 9.0], [jnp.nan, 2.0]]), "b": jnp.array([4.0])})
    {'b': Array(4., dtype=float32), 'w': Array(2., dtype=float32)}
    """
    return _map(jnp.nanmedian, values)


def global_median(values: Any) -> Array:
    """The median of all leaves' elements together, NaN left out; it sorts one copy of them all.

    >>> global_median({"w": jnp.array([[1.0, 9.0], [jnp.nan, 2.0]]), "b": jnp.array([4.0])})
    Array(3., dtype=float32)
    """
    return jnp.nanmedian(ravel_pytree(_map(_in_float32, values))[0])


def gradient_snr(nu_adam: Any, nu_micro: Any, batch_size: BatchSize) -> Any:
    """The signal-to-noise ratio `|mu| / sigma` of one example's gradient, elementwise:
    `sqrt(max(mu**2, 0) / sigma**2)`.

    Both from the unbiased estimates, so that EMAs of nu_adam and nu_micro approach the SNR itself;
    `hlo_surgery.snr` divides the batch's own `|mean g|`, which noise alone keeps near
    `1 / sqrt(B)`.

    With m = mean sign(g), `gradient_snr(m**2, mean |sign(g)|, B)` is the SNR of sign, zero
    gradients allowed for.

    >>> gradient_snr(5.0, 6.0, batch_size=2)
    Array(1.4142135, dtype=float32)
    """
    ratio = moment_ratio(nu_adam, nu_micro, batch_size, effective_batch_size=1)
    return _map(lambda r: jnp.sqrt(jnp.maximum(r, 0)), ratio)


def sign_snr(snr: Any) -> Any:
    """The SNR of sign(X) for X normal with SNR r, elementwise:
    `|2p - 1| / (2 sqrt(p (1 - p)))` with `p = Phi(r)`.

    From the paper's appendix "The sign function and signal to noise ratio", whose limits lack
    constants: for small r it is `sqrt(2 / pi) r` (not `r / sqrt(2 pi)`), for large r
    `(pi / 8)**(1/4) sqrt(r) exp(r**2 / 4)`. Sign lowers the SNR below r = 1.187, and
    raises it above.

    >>> [f"{float(sign_snr(r)):.4g}" for r in (0.01, 1.187, 3.0)]
    ['0.007979', '1.187', '13.58']
    """

    def of_normal(r: Array) -> Array:
        # 2p - 1 is erf(r / sqrt 2), exact for small r; p and 1 - p as logarithms do not underflow
        # for large r.
        return erf(jnp.abs(r) / math.sqrt(2)) * jnp.exp(-(log_ndtr(r) + log_ndtr(-r)) / 2) / 2

    return _map(of_normal, snr)


def sampled_sign_snr(mean_sign: Any) -> Any:
    """The SNR of sign(g) from m = mean sign(g) (`hlo_surgery.mean_sign`), elementwise:
    `|m| / sqrt(1 - m**2)`.

    It takes every sign for +1 or -1, and is infinite where all agree. Of few examples it is too
    large, about `1 / sqrt(B)` where there is no signal: average m over many, or see `gradient_snr`.

    >>> sampled_sign_snr(jnp.array([0.0, -0.6, 1.0]))
    Array([0.  , 0.75,  inf], dtype=float32)
    """
    return _map(lambda m: jnp.abs(m) / jnp.sqrt((1 - jnp.abs(m)) * (1 + jnp.abs(m))), mean_sign)


def _map(function: Callable[..., Array], *trees: Any) -> Any:
    """The function of the leaves of trees that are alike, in at least float32."""
    return jax.tree.map(lambda *leaves: function(*map(_in_float32, leaves)), *trees)


def _in_float32(x: Any) -> Array:
    return widened(jnp.asarray(x))


def _at_least_two(batch_size: BatchSize) -> BatchSize:
    # Where it is an array it meets gradients first: 1 / size of integers would be of float32,
    # whatever they are. The mean number of examples of several batches may lie between one and two.
    if not isinstance(batch_size, Tracer) and batch_size <= 1:
        raise ValueError(
            f"batch_size must be at least 2 to tell mean from variance, not {batch_size!r}"
        )
    return batch_size
