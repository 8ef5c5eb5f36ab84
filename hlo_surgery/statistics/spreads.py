"""Spreads: how far the examples' gradients lie apart, element by element.

Histograms of the entries of the examples' gradients.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from hlo_surgery.passes.measures.measures import Variance
from hlo_surgery.passes.measures.moments import unbiased as unbiased_factor
from hlo_surgery.passes.terms.scaling import joint_norm, norms_of_rows
from hlo_surgery.statistics.derived import (
    Arrays,
    Derived,
    Found,
    Groups,
    Number,
    Per,
    as_float,
    entries_of,
    flag,
)
from hlo_surgery.statistics.directions import SumOf


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

    def combine(found: Found, groups: Groups) -> Arrays:
        scale = unbiased_factor(found.count) if unbiased else 1.0
        return [scale * spread for spread in found.of(measure)]

    measure = Variance()
    return Derived(
        "variance" if unbiased else "variance(False)", combine, (measure,), least=1 + unbiased
    )


def snr(per: Per | Literal["entry"] = "entry") -> Derived:
    """`|mean| / standard deviation` of the examples' gradients.

    With "entry" elementwise, and the result is like the gradient: NaN where the variance is too
    large for its dtype, or so small that it may have been rounded to zero. With "parameter" one
    number for each, the norm of the mean over the root of the summed variances, of the entries of
    which the ratio is known; NaN where none is. "global" and groups are as in `norms`.

    Roulet and Agarwala, appendix on SNR.

    The deviation is the root of `variance`. Where examples do not differ but by rounding, the ratio
    is huge or inf.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.snr())
    >>> round(float(f(1.0, jnp.array([-1.0, 3.0]))[1]), 6)  # 1 / sqrt(8)
    0.353553
    """
    spread, is_grouped = variance(), per != "entry"

    def combine(found: Found, groups: Groups) -> Arrays:
        pairs = list(zip(found.mean(), spread.combine(found, groups), strict=True))
        if not is_grouped:
            return [_in_deviations(mean, variance) for mean, variance in pairs]
        return [_of_group([pairs[i] for i in group]) for group in groups]

    how: Any = {"like": "group", "per": per} if is_grouped else {}
    name = f"snr({repr(per) if isinstance(per, str) else 'per=...'})" if is_grouped else "snr"
    return Derived(name, combine, spread.measures, about_mean=True, least=2, **how)


def _of_group(pairs: Sequence[tuple[Array, Array]]) -> Array:
    """The norm of means over the root of a sum of variances, of entries of which both are known."""
    parts: list[Array] = []
    for mean, variance in pairs:
        of_each = jnp.stack([jnp.abs(mean).astype(variance.dtype), jnp.sqrt(variance)])
        parts.append(
            norms_of_rows(jnp.where(jnp.isnan(_in_deviations(mean, variance)), 0, of_each))
        )
    mean, deviation = joint_norm(parts)
    return mean / deviation


def _in_deviations(mean: Array, variance: Array) -> Array:
    """|mean| over the root of a variance, NaN where that is out of the range of its dtype."""
    limits, size = jnp.finfo(variance.dtype), jnp.abs(mean).astype(variance.dtype)
    # Below this a spread as small as the mean's own roundings has no normal square.
    smallest = math.sqrt(float(limits.tiny)) / float(limits.eps)
    lost = (variance < limits.tiny) & (size < smallest)
    known = jnp.isfinite(variance) & ~lost
    return jnp.where(known, size / jnp.sqrt(variance), jnp.nan)


def histogram(bins: Sequence[Number] | Array) -> Derived:
    """How many of all examples' gradient entries lie in each bin, for each parameter:
    `[len(bins) - 1]`, int32.

    `bins` are increasing edges, as in `numpy.histogram`; what lies outside counts nowhere. Where
    they are traced and do not increase, all counts are -1. For real gradients; TypeError is raised
    for complex ones.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=hs.histogram([-2, 0, 2, 4]))
    >>> f(1.0, jnp.array([-1.0, 3.0]))[1].tolist()
    [1, 0, 1]
    """
    edges = _edges(bins)

    def counts(g: Array) -> Array:
        if jnp.iscomplexobj(g):
            raise TypeError("histogram is for real gradients; a complex one has no order")
        entries = g.ravel()
        sides, last = _sides(edges, entries.dtype)
        entries = entries.astype(sides.dtype)
        where = jnp.searchsorted(sides, entries, side="right", method="scan_unrolled")
        inside = jnp.where(entries == last, len(edges) - 1, where).astype(jnp.int32)
        return jnp.zeros(len(edges) + 1, jnp.int32).at[inside].add(1)[1:-1]

    def combine(found: Found, groups: Groups) -> Arrays:
        each = found.of(measure)
        return each if isinstance(edges, tuple) else [_checked(edges, n) for n in each]

    measure = SumOf("histogram", counts)
    return Derived("histogram", combine, (measure,))


def _edges(bins: Any) -> tuple[float, ...] | Array:
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(bins)):
        traced = jnp.asarray(bins)
        if traced.ndim != 1 or len(traced) < 2 or jnp.iscomplexobj(traced):
            raise ValueError(
                "histogram takes at least two increasing edges, not "
                f"{jax.typeof(traced).str_short()}"
            )
        return traced
    edges = tuple(map(as_float, entries_of(bins)))
    if len(edges) < 2 or any(not a < b for a, b in itertools.pairwise(edges)):
        raise ValueError(f"histogram takes at least two increasing edges, not {bins!r}")
    return edges


def _sides(edges: tuple[float, ...] | Array, dtype: Any) -> tuple[Array, Array]:
    """The edges in a dtype that compares exactly with gradients, and the last, which is in its bin.

    A known edge that the dtype lacks becomes the next larger number, as of that on gradients lie
    beyond it.
    """
    if not isinstance(edges, tuple):
        sides = edges.astype(jnp.promote_types(edges.dtype, dtype))
        return sides, sides[-1]
    exact = np.asarray(edges, np.float64)
    with np.errstate(over="ignore"):
        nearest = exact.astype(dtype)
    sides = np.where(nearest < exact, np.nextafter(nearest, np.asarray(np.inf, dtype)), nearest)
    return jnp.asarray(sides), jnp.asarray(sides[-1] if sides[-1] == exact[-1] else np.nan, dtype)


def _checked(edges: Array, counts: Array) -> Array:
    return jnp.where(jnp.all(edges[1:] > edges[:-1]), counts, -1)
