"""Weights of the examples, by norms of their gradients or inner products of all pairs.

Statistics that are sums with a weight for each example, whatever of its gradient is summed.

Means and sums of the examples' gradients with weights: clipped, or scaled as is wanted.

Second moments of the examples' gradients with weights: clipped, or scaled as is wanted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from hlo_surgery.passes.emit.export import as_asked
from hlo_surgery.passes.measures.measures import Gram, Measure, Norms
from hlo_surgery.passes.measures.moments import MEANS, SUMS, Join, at_least
from hlo_surgery.passes.measures.projections import DenselyProjected, Projected
from hlo_surgery.passes.terms.scaling import joint_norm, norms_of_rows
from hlo_surgery.statistics.derived import (
    Arrays,
    Bound,
    Derived,
    Found,
    Groups,
    Number,
    Per,
    called,
    flag,
    positive,
    positive_in,
    shown,
)

Weigh = Callable[[Array], Array]
Of = Literal["norms", "gram"] | Derived
NORMS = Norms()
# What weights are a function of.
WEIGHED: dict[str, Measure] = {"norms": NORMS, "gram": Gram()}


def group_norms(found: Found, groups: Groups, measure: Measure = NORMS) -> Arrays:
    """The norm of each example's gradient, or of its projection, over each group of outputs,
    [B].
    """
    each, ord = found.of(measure), 2.0
    if isinstance(measure, Norms):
        ord = measure.ord
    else:
        each = [norms_of_rows(rows.reshape(len(rows), -1)) for rows in each]
    return [joint_norm([each[i] for i in group], ord) for group in groups]


def _measure(of: Of) -> Measure:
    """What weights are a function of."""
    return of.measures[0] if isinstance(of, Derived) else WEIGHED[of]


def group_grams(found: Found, groups: Groups) -> Arrays:
    """The inner products of all pairs of examples over each group of outputs, [B, B]."""
    return group_sums(found.of(Gram()), groups)


def group_sums(each: Sequence[Array], groups: Groups) -> Arrays:
    """The sum over each group of what there is of each output."""
    return [jnp.sum(jnp.stack([each[i] for i in group]), 0) for group in groups]


def example_weights(
    found: Found, groups: Groups, w: Weigh, nan_safe: bool, of: Of
) -> tuple[Arrays, Array | None]:
    """The weights [B] for each output, by its group; if `nan_safe` those of examples whose gradient
    is not finite are zero, and which are finite, [B], comes with them.
    """
    taken = group_grams(found, groups) if of == "gram" else group_norms(found, groups, _measure(of))
    finite = jnp.all(jnp.isfinite(jnp.stack(list(map(_sizes, taken)))), 0) if nan_safe else None
    weights: dict[int, Array] = {}
    for group, x in zip(groups, taken, strict=True):
        own = _weights(w, x if finite is None else _of_finite(x, finite))
        own = own if finite is None else jnp.where(finite, own, 0)
        weights |= dict.fromkeys(group, own)
    return [weights[i] for i in range(len(weights))], finite


def _sizes(x: Array) -> Array:
    """Norms, or squared norms from the products of all pairs, [B]."""
    return x if x.ndim == 1 else jnp.diagonal(x)


def _of_finite(x: Array, finite: Array) -> Array:
    """Norms or products, 0 for examples that are not finite."""
    return jnp.where(finite if x.ndim == 1 else finite[:, None] & finite, x, 0)


def _weights(w: Weigh, x: Array) -> Array:
    """The weights [B], a real array; else ValueError."""
    made: Any = as_asked(w)(x)
    if not isinstance(made, Array | np.ndarray):
        said = repr(made)
    else:
        said = f"{made.dtype}{list(made.shape)}"
        if made.shape == x.shape[:1] and not jnp.iscomplexobj(made):
            return jnp.asarray(made)
    raise ValueError(
        f"weights must be one for each example, a real array {list(x.shape[:1])}; w made {said}"
    )


# Of what was found, the weights [B] of each gradient, and which examples are finite, if only these
# count: an array like each gradient.
Sums = Callable[[Found, Arrays, Array | None], Arrays]


def weighed_sums(statistic: str, sums: Sums, w: Any, per: Per, nan_safe: bool, of: Any) -> Derived:
    """With weights that a user's function makes. Raises TypeError where w is none, ValueError where
    `of` is nothing that it takes.
    """
    weigh: Weigh = w
    if not callable(w):
        raise TypeError(
            f"{statistic} takes a function from the norms [B] to weights [B]; for weights that "
            f"are known, pass one that returns them: {statistic}(lambda norms: weights)"
        )
    projects = isinstance(of, Derived) and isinstance(of.measures[0], Projected | DenselyProjected)
    if not projects and (isinstance(of, Derived) or of not in WEIGHED):
        raise ValueError(
            f"{statistic} has weights of='norms', of='gram' or of=hs.projected(k), not {of!r}"
        )
    safe = flag(statistic, "nan_safe", nan_safe)
    arguments = [getattr(w, "__name__", "w"), *([] if of == "norms" else [f"of={of!r}"])]
    return _weighted(called(statistic, per, *arguments, default=False), sums, weigh, per, safe, of)


def clipping(statistic: str, max_norm: Number) -> Weigh:
    """Weights that scale each gradient down to norm `max_norm` at most. Raises ValueError for what
    is not positive and finite, or when it is used out of the range of the norms' dtype.
    """
    limit = positive(statistic, "max_norm", max_norm)

    def clip(norm: Array) -> Array:
        bound = positive_in(norm.dtype, _in_range(statistic, limit, norm.dtype))
        return bound / at_least(norm, bound)

    return clip


def _in_range(statistic: str, limit: Number, dtype: Any) -> Number:
    """The limit, if traced or a normal number of the norms' dtype; else weights would be 0 / 0."""
    range = jnp.finfo(dtype)
    if not isinstance(limit, Tracer) and not float(range.tiny) <= float(limit) <= float(range.max):
        raise ValueError(
            f"{statistic} takes a max_norm from {range.tiny:.3g} to {range.max:.3g}, as norms "
            f"here are {dtype}, "
            f"not {limit}"
        )
    return limit


Relation = Literal["add or remove one", "replace one", "replace special"]
# By how many clipped gradients sums of neighbouring batches differ.
MOVED: dict[Relation, int] = {"add or remove one": 1, "replace one": 2, "replace special": 1}


def sensitivity(bound: Bound, relation: Any, groups: int, size: int) -> Number:
    """How far, in L2, a clipped sum of so many groups moves at most between neighbouring batches;
    of a mean, that of `size` rows. Raises ValueError for what is no relation.
    """
    word = str(getattr(relation, "name", relation)).lower().replace("_", " ")
    if word not in MOVED:
        raise ValueError(
            f"relation is {relation!r}; it is one of {', '.join(map(repr, MOVED))}, or one of "
            "dp_accounting.NeighboringRelation"
        )
    return MOVED[word] * math.sqrt(groups) * bound.max_norm / (size if bound.is_mean else 1)


def clipped_sums(
    statistic: str,
    sums: Sums,
    max_norm: Number,
    per: Per,
    nan_safe: bool,
    joins: Join = MEANS,
    is_mean: bool | None = None,
) -> Derived:
    """With weights that clip each gradient to a norm: a private statistic. `is_mean`: whether it is
    the mean of the gradients or their sum, if either.
    """
    name = called(statistic, per, shown(max_norm), default=False)
    safe = flag(statistic, "nan_safe", nan_safe)
    bound = None if is_mean is None or not safe else Bound(max_norm, is_mean)
    private: Any = {"private": True, "joins": joins, "bound": bound}
    return _weighted(name, sums, clipping(statistic, max_norm), per, safe, "norms", **private)


def _weighted(
    name: str, sums: Sums, w: Weigh, per: Per, nan_safe: bool, of: Of, **kind: Any
) -> Derived:
    def combine(found: Found, groups: Groups) -> Arrays:
        return sums(found, *example_weights(found, groups, w, nan_safe, of))

    return Derived(name, combine, (_measure(of),), "gradient", per, reweights=True, **kind)


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
    return clipped_sums("clipped_mean", _means, max_norm, per, nan_safe, is_mean=True)


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
    return clipped_sums("clipped_sum", _sums, max_norm, per, nan_safe, SUMS, is_mean=False)


def _sums(found: Found, weights: Arrays, finite: Array | None) -> Arrays:
    return found.weighted(weights, finite)


def weighted_mean(
    w: Weigh, per: Per = "global", nan_safe: bool = False, of: Of = "norms"
) -> Derived:
    """The mean over the examples of `w_b g_b`, weights [B] being a JAX function of the norms [B].
    The result is like the gradient.

    `weighted_mean(lambda n: 1 / (n + 0.01))` is AUTO-S (Bu et al., "Automatic Clipping"). With
    `of="gram"` w takes the inner products of all pairs of examples instead, [B, B], as of `gram`:
    any combination of the gradients by their angles. With `of=hs.projected(k)` it takes the norms
    of all parameters' own projections together, whose squares have those of the gradients' as their
    mean: of long sequences they cost a fraction, and nothing bounds what is clipped by them.
    Padding has norm and products 0. `per` and `nan_safe`, here False by default, are as in
    `clipped_mean`. Raises TypeError where w is no
    function, and ValueError, when the statistic is computed, where it makes no real array [B].

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> normalised = hs.weighted_mean(lambda norms: 1 / norms)
    >>> f = hs.grad(lambda w, x: jnp.mean(w * x), statistics=normalised)
    >>> float(f(1.0, jnp.array([1.0, 3.0]))[1])
    1.0
    """
    return weighed_sums("weighted_mean", _means, w, per, nan_safe, of)


def _means(found: Found, weights: Arrays, finite: Array | None) -> Arrays:
    """Weights are divided by the number of examples, and not sums, which might leave the range."""
    shares = [weight / jnp.asarray(found.count, weight.dtype) for weight in weights]
    return found.weighted(shares, finite)


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


def _mean_squares(found: Found, weights: Arrays, finite: Array | None) -> Arrays:
    squares = found.weighted_squares(weights, finite)
    return [square / jnp.asarray(found.count, square.dtype) for square in squares]
