"""Real examples: which are not padding, and how many; padding counts in no sum and no mean."""

from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.strategies.centred_operands import central_moment, squared_magnitude
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.wanted import Known
from hlo_surgery.statistics.measures import (
    Gram,
    MeanOf,
    Measure,
    PerExampleGradients,
    SumOf,
    Variance,
    precise,
)


def count_of(known: Known, request: Request) -> Any:
    """The number of examples that a mean is over: B, or a traced number that is 1 at least."""
    return request.size if request.real is None else known[request.real[1]]


def mean_of_examples(gradient: Value, known: Known, request: Request) -> jax.Array:
    """The mean of the examples' gradients, from the module's own."""
    scale = 1 if request.loss_reduction == "mean" else count_of(known, request)
    return widened(known[gradient]) / scale


def flags_of(known: Known, request: Request) -> jax.Array | None:
    """Which examples are real, [B], or None where all are."""
    return None if request.real is None else known[request.real[0]]


def without_padding(rows: jax.Array, real: jax.Array | None) -> jax.Array:
    """Rows [B, ...], zero for padding."""
    if real is None:
        return rows
    return jnp.where(real.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros_like(rows))


def measured(
    measure: Measure, gradients: jax.Array, real: jax.Array | None, count: Any
) -> jax.Array:
    """A measure by its definition, of all examples' gradients [B, *parameter]."""
    match measure:
        case _ if real is None:
            return measure.of(gradients)  # type: ignore[union-attr]
        case MeanOf():
            return jnp.sum(without_padding(precise(measure.phi, gradients), real), 0) / count
        case Variance():
            wide = without_padding(widened(gradients), real)
            off = without_padding(wide - jnp.sum(wide, 0) / count, real)
            return central_moment(
                jnp.sum(squared_magnitude(off), 0) / count, jnp.sum(off, 0) / count
            )
        case SumOf():
            rows = without_padding(jax.vmap(measure.function)(gradients), real)
            return jnp.sum(rows, 0, dtype=rows.dtype)
        case Gram() | PerExampleGradients():
            return measure.of(without_padding(gradients, real))
        case _:
            return without_padding(measure.of(gradients), real)  # type: ignore[union-attr]


def real_values(request: Request) -> list[Value]:
    """The values of the module that tell padding."""
    return [] if request.real is None else list(request.real)


def flags_and_count(dtype: Any, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is real, and how many as a float; 1 where none is, so that a mean over none is zero.

    The number is NaN where a flag is neither 0 nor 1: nobody can say what such an example counts.
    """
    real = mask == 1
    count = jnp.maximum(jnp.sum(real, dtype=dtype), 1)
    return real, jnp.where(jnp.all(real | (mask == 0)), count, jnp.nan)


def nan_unless_flags(statistic: jax.Array, count: jax.Array) -> jax.Array:
    """NaN where the number of the real examples is, in rows too; numbers of entries are -1 then."""
    nothing = jnp.nan if jnp.issubdtype(statistic.dtype, jnp.inexact) else -1
    return jnp.where(jnp.isnan(count), nothing, statistic)
