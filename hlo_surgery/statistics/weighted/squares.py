"""Second moments of the examples' gradients with weights: clipped, or scaled as is wanted."""

import jax
import jax.numpy as jnp

from hlo_surgery.statistics.derived import Derived, Per
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number
from hlo_surgery.statistics.weighted.sums import clipped_sums, weighed_sums
from hlo_surgery.statistics.weighted.weights import Of, Weigh


def clipped_second_moment(max_norm: Number, per: Per = "global", nan_safe: bool = True) -> Derived:
    """The mean over the examples of `|c_b g_b|**2`, elementwise, each gradient scaled down to norm
    `max_norm` at most, as in `clipped_mean`.

    The result is like the gradient. It is what `clipped_mean` is to the mean, for a second moment:
    adding or removing one example moves its B-fold by at most `max_norm**2` in the sum of absolute
    values, over each group of `per`, and replacing one by twice that. Where squares of operands
    apply, an operand is weighted and then both are squared, in one contraction; elsewhere every
    example's gradient is taken in turn. What `clipped_mean` says of ranges, of `nan_safe` and of
    refusals holds.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.clipped_second_moment(2.0))
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])  # (1 + 4) / 2
    2.5
    """
    return clipped_sums("clipped_second_moment", _mean_squares, max_norm, per, nan_safe)


def weighted_second_moment(
    w: Weigh, per: Per = "global", nan_safe: bool = False, of: Of = "norms"
) -> Derived:
    """The mean over the examples of `|w_b g_b|**2`, elementwise, with weights [B] as in
    `weighted_mean`.

    The result is like the gradient. Raises TypeError where w is no function, and ValueError, when
    the statistic is computed, where it makes no real array [B].

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> normalised = hs.weighted_second_moment(lambda norms: 1 / norms)
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=normalised)
    >>> float(f(1.0, jnp.array([-1.0, 3.0]))[1])
    1.0
    """
    return weighed_sums("weighted_second_moment", _mean_squares, w, per, nan_safe, of)


def _mean_squares(
    found: Found, weights: list[jax.Array], finite: jax.Array | None
) -> list[jax.Array]:
    squares = found.weighted_squares(weights, finite)
    return [square / jnp.asarray(found.count, square.dtype) for square in squares]
