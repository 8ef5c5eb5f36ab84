"""Paired dimensions: those along which a contraction's two factors scale against each other.

sum_t x[h, t, d] y[h, t, f]  =  sum_t (x[h, t, d] / s[h, t]) (y[h, t, f] s[h, t])
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.linearity import SUMMING
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.terms.contracted_dims import Dims, contracted
from hlo_surgery.passes.terms.steps import Axis, holds_all


def paired_dims(op: Operation, axes: Sequence[Axis]) -> tuple[Dims, Dims] | None:
    """The dimensions of both factors, pair by pair, if examples lie along both; else None.

    A dot_general multiplies only what agrees in all of them; of a convolution nothing is known but
    the examples.
    """
    if op.name not in SUMMING or len(axes) != 2 or not all(map(holds_all, axes)):
        return None
    if op.name == "stablehlo.dot_general":
        left, right = contracted(op).values()
        return (*left.batch, *left.summed), (*right.batch, *right.summed)
    first, second = axes
    if not (isinstance(first, PerExample) and isinstance(second, PerExample)):
        return None
    return ((first.dim,), (second.dim,)) if first.is_whole and second.is_whole else None


def magnitudes(x: jax.Array, dims: Dims) -> jax.Array:
    """The largest magnitude along all other dimensions, these dimensions in their order."""
    return _in_order(jnp.max(jnp.abs(x), _others(x, dims), initial=0), dims)


def lost_beside(one: jax.Array, other: jax.Array) -> jax.Array:
    """Where one factor may have lost what counts beside the other, from the largest magnitudes: the
    other's square is beyond all numbers, and all of this one so small that zeros may be rounding.
    """
    limits = jnp.finfo(one.dtype)
    large, small = 2.0 ** (limits.maxexp // 2), float(limits.tiny) / float(limits.eps)
    return (other >= large) & (one < small)


def _others(x: jax.Array, dims: Dims) -> list[int]:
    return [d for d in range(x.ndim) if d not in dims]


def _in_order(x: jax.Array, dims: Dims) -> jax.Array:
    kept = sorted(dims)
    return x.transpose([kept.index(d) for d in dims])


def laid_along(values: jax.Array, x: jax.Array, dims: Dims) -> jax.Array:
    """Values by these dimensions, of size 1 along the others of x."""
    ordered = values.transpose([dims.index(d) for d in sorted(dims)])
    return jnp.expand_dims(ordered, _others(x, dims))
