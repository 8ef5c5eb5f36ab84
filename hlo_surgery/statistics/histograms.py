"""Histograms of the entries of the examples' gradients."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.passes.measures.measures import SumOf
from hlo_surgery.statistics.derived import Derived, Groups
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number, as_float, entries_of


def histogram(bins: Sequence[Number] | jax.Array) -> Derived:
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

    def counts(g: jax.Array) -> jax.Array:
        if jnp.iscomplexobj(g):
            raise TypeError("histogram is for real gradients; a complex one has no order")
        entries = g.ravel()
        sides, last = _sides(edges, entries.dtype)
        entries = entries.astype(sides.dtype)
        where = jnp.searchsorted(sides, entries, side="right", method="scan_unrolled")
        inside = jnp.where(entries == last, len(edges) - 1, where).astype(jnp.int32)
        return jnp.zeros(len(edges) + 1, jnp.int32).at[inside].add(1)[1:-1]

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        return (
            found.of(measure)
            if isinstance(edges, tuple)
            else [_checked(edges, n) for n in found.of(measure)]
        )

    measure = SumOf("histogram", counts)
    return Derived("histogram", combine, (measure,))


def _edges(bins: Any) -> tuple[float, ...] | jax.Array:
    if any(
        isinstance(x, Tracer) for x in [bins, *(bins if isinstance(bins, list | tuple) else [])]
    ):
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


def _sides(edges: tuple[float, ...] | jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
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


def _checked(edges: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.where(jnp.all(edges[1:] > edges[:-1]), counts, -1)
