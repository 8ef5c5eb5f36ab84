"""Weights of the examples, by norms of their gradients or inner products of all pairs."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.passes.emit.export import as_asked
from hlo_surgery.passes.measures.measures import Gram, Measure, Norms
from hlo_surgery.passes.measures.moments import at_least
from hlo_surgery.passes.terms.scaling import joint_norm
from hlo_surgery.statistics.derived import Groups, Per, called, positive
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number, positive_in

Weigh = Callable[[jax.Array], jax.Array]
Of = Literal["norms", "gram"]
NORMS = Norms()
# What weights are a function of.
WEIGHED: dict[str, Measure] = {"norms": NORMS, "gram": Gram()}


def group_norms(found: Found, groups: Groups, measure: Norms = NORMS) -> list[jax.Array]:
    """The norm of each example's gradient over each group of outputs, [B]."""
    each = found.of(measure)
    return [joint_norm([each[i] for i in group], measure.ord) for group in groups]


def group_grams(found: Found, groups: Groups) -> list[jax.Array]:
    """The inner products of all pairs of examples over each group of outputs, [B, B]."""
    each = found.of(Gram())
    return [jnp.sum(jnp.stack([each[i] for i in group]), 0) for group in groups]


def example_weights(
    found: Found, groups: Groups, w: Weigh, nan_safe: bool, of: Of
) -> tuple[list[jax.Array], jax.Array | None]:
    """The weights [B] for each output, by its group; if `nan_safe` those of examples whose gradient
    is not finite are zero, and which are finite, [B], comes with them.
    """
    taken = group_norms(found, groups) if of == "norms" else group_grams(found, groups)
    finite = jnp.all(jnp.isfinite(jnp.stack(list(map(_sizes, taken)))), 0) if nan_safe else None
    weights: dict[int, jax.Array] = {}
    for group, x in zip(groups, taken, strict=True):
        own = _weights(w, x if finite is None else _of_finite(x, finite))
        own = own if finite is None else jnp.where(finite, own, 0)
        weights |= dict.fromkeys(group, own)
    return [weights[i] for i in range(len(weights))], finite


def _sizes(x: jax.Array) -> jax.Array:
    """Norms, or squared norms from the products of all pairs, [B]."""
    return x if x.ndim == 1 else jnp.diagonal(x)


def _of_finite(x: jax.Array, finite: jax.Array) -> jax.Array:
    """Norms or products, 0 for examples that are not finite."""
    return jnp.where(finite if x.ndim == 1 else finite[:, None] & finite, x, 0)


def _weights(w: Weigh, x: jax.Array) -> jax.Array:
    """The weights [B], a real array; else ValueError."""
    made: Any = as_asked(w)(x)
    if not isinstance(made, jax.Array | np.ndarray):
        said = repr(made)
    else:
        said = f"{made.dtype}{list(made.shape)}"
        if made.shape == x.shape[:1] and not jnp.iscomplexobj(made):
            return jnp.asarray(made)
    raise ValueError(
        f"weights must be one for each example, a real array {list(x.shape[:1])}; w made {said}"
    )


def check_weighing(statistic: str, w: Any, of: str) -> None:
    """Raises TypeError where w is no function, ValueError where `of` is no word."""
    if not callable(w):
        raise TypeError(
            f"{statistic} takes a function from the norms [B] to weights [B]; for weights that "
            f"are known, pass one that returns them: {statistic}(lambda norms: weights)"
        )
    if of not in get_args(Of):
        raise ValueError(f"{statistic} has weights of='norms' or of='gram', not {of!r}")


def weighing_name(statistic: str, w: Any, per: Per, of: Of) -> str:
    """The statistic as it was called."""
    arguments = [getattr(w, "__name__", "w"), *([] if of == "norms" else [f"of={of!r}"])]
    return called(statistic, per, *arguments, default=False)


def clipping(statistic: str, max_norm: Number) -> Weigh:
    """Weights that scale each gradient down to norm `max_norm` at most. Raises ValueError for what
    is not positive and finite, or when it is used out of the range of the norms' dtype.
    """
    limit = positive(statistic, "max_norm", max_norm)

    def clip(norm: jax.Array) -> jax.Array:
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
