"""Statistics that are sums with a weight for each example, whatever of its gradient is summed."""

from collections.abc import Callable
from typing import Any

import jax

from hlo_surgery.passes.measures.moments import MEANS, Join
from hlo_surgery.statistics.derived import Derived, Groups, Per, called
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number, flag, shown
from hlo_surgery.statistics.weighted.weights import (
    WEIGHED,
    Of,
    Weigh,
    check_weighing,
    clipping,
    example_weights,
    weighing_name,
)

# Of what was found, the weights [B] of each gradient, and which examples are finite, if only these
# count: an array like each gradient.
Sums = Callable[[Found, list[jax.Array], jax.Array | None], list[jax.Array]]


def clipped_sums(
    statistic: str,
    sums: Sums,
    max_norm: Number,
    per: Per,
    nan_safe: bool,
    joins: Join = MEANS,
) -> Derived:
    """With weights that clip each gradient to a norm: a private statistic."""
    name = called(statistic, per, shown(max_norm), default=False)
    safe = flag(statistic, "nan_safe", nan_safe)
    private: Any = {"private": True, "joins": joins}
    return _weighted(name, sums, clipping(statistic, max_norm), per, safe, "norms", **private)


def weighed_sums(statistic: str, sums: Sums, w: Weigh, per: Per, nan_safe: bool, of: Of) -> Derived:
    """With weights that a user's function makes."""
    check_weighing(statistic, w, of)
    safe = flag(statistic, "nan_safe", nan_safe)
    return _weighted(weighing_name(statistic, w, per, of), sums, w, per, safe, of)


def _weighted(
    name: str, sums: Sums, w: Weigh, per: Per, nan_safe: bool, of: Of, **kind: Any
) -> Derived:
    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        return sums(found, *example_weights(found, groups, w, nan_safe, of))

    return Derived(name, combine, (WEIGHED[of],), "gradient", per, reweights=True, **kind)
