"""Wanted: one gradient, how each of its measures is computed, and what all ways to do so share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of, wide_dtype
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.strategies.ghost_paths import Path
from hlo_surgery.passes.terms.gradient_slices import GradientSlice
from hlo_surgery.passes.terms.slice_functions import SliceFunction
from hlo_surgery.passes.terms.wide_slices import narrowest
from hlo_surgery.planning.choice import Choice
from hlo_surgery.requests.request import Request
from hlo_surgery.statistics.measures import Measure, PerExampleGradients


@dataclass(frozen=True)
class Wanted:
    """One gradient: the module's, its slice, one example's function, ghost paths, strategies."""

    gradient: Value
    sliced: GradientSlice
    function: SliceFunction
    paths: Sequence[Path]
    choice: Choice


Known = Mapping[Value, jax.Array]
Measured = dict[Measure, jax.Array]
Computed = tuple[jax.Array | None, Measured]


def is_precise(sliced: GradientSlice) -> bool:
    """Whether nothing between the examples and the gradient is rounded to less than float32."""
    taken = [value for value, _ in sliced.inputs if mlir.is_inexact(value)]
    return makes_float32(sliced) and all(map(mlir.is_at_least_float32, [sliced.value, *taken]))


def makes_float32(sliced: GradientSlice) -> bool:
    """Whether no op on the way to the gradient rounds to less than float32."""
    return all(
        mlir.is_at_least_float32(result) for step in sliced.steps for result in step.op.results
    )


def statistic_dtype(gradient: Value) -> jnp.dtype:
    """Squares and sums of low-precision gradients accumulate in float32."""
    return wide_dtype(dtype_of(gradient))


def total_of(wanted: Wanted, mean: jax.Array, request: Request) -> jax.Array:
    """The minibatch gradient from the mean of the examples', rounded as the module does."""
    total = mean if request.loss_reduction == "mean" else mean * request.size
    if wanted.function.wide:
        total = total.astype(narrowest(wanted.sliced))
    return total.astype(dtype_of(wanted.sliced.value))


def in_own_dtype(wanted: Wanted, found: Measured) -> Measured:
    """Gradients themselves are returned as the module would."""
    dtype = dtype_of(wanted.sliced.value)
    return {
        m: x.astype(dtype) if isinstance(m, PerExampleGradients) else x for m, x in found.items()
    }
