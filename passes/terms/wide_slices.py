"""Wide slices: given a slice that rounds to bfloat16 or float16, functions that keep float32.

    %m = dot_general %h, %l : bf16, bf16 -> bf16       =>  dot_general %h, %l : bf16, bf16 -> f32
    %g = convert %m : bf16 -> f32                      =>  nothing
    %s = scatter 0, %i, %u : bf16                      =>  scatter 0, %i, %u : f32

Matrix units accumulate in float32 anyway. So each example's gradient is had without a rounding of
its own. Their sum is rounded once, as the module's is, or not at all where the module adds up what
it has rounded; and the gradient can be taken from the same tensor as its statistics.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.linearity import added_results
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.raising.contractions import dot_general
from hlo_surgery.passes.raising.indexing import scatter
from hlo_surgery.passes.raising.table import Raised, single
from hlo_surgery.passes.terms.convolution_patches import convolution_by_patches
from hlo_surgery.passes.terms.epilogue import moving
from hlo_surgery.passes.terms.steps import GradientSlice, Step


def _scattered(op: Operation, dtype: np.dtype) -> Raised | None:
    return scatter(op, dtype) if all(added_results(op)) else None


CONTRACTIONS: dict[str, Callable[[Operation, np.dtype], Raised | None]] = {
    "stablehlo.dot_general": dot_general,
    "stablehlo.convolution": convolution_by_patches,
}
SUMS = CONTRACTIONS | {"stablehlo.scatter": _scattered}


def is_widenable(sliced: GradientSlice) -> bool:
    """Whether a slice rounds below float32, and contracts and moves only, so that it need not."""
    results = [result for step in sliced.steps for result in step.op.results]
    rounds = any(mlir.is_inexact(r) and not mlir.is_at_least_float32(r) for r in results)
    return rounds and all(_raise_wide(step) is not None for step in sliced.steps)


def is_short_ranged(sliced: GradientSlice) -> bool:
    """Whether a slice goes through floats that end long before float32 does, as float16: B times
    what an example adds to a sum may be beyond them where the sum is not.
    """
    results = [result for step in sliced.steps for result in step.op.results]
    dtypes = [dtype_of(v) for v in results if mlir.is_inexact(v) and not mlir.is_complex(v)]
    return any(jnp.finfo(dtype).maxexp < jnp.finfo(jnp.bfloat16).maxexp for dtype in dtypes)


def raise_wide(step: Step, upcast: bool) -> Raised:
    """A widenable slice's step, returning at least float32; `upcast`: also from such operands."""
    raised = _raise_wide(step)
    assert raised is not None
    return partial(_from_wide, raised) if upcast and step.op.name in CONTRACTIONS else raised


def _from_wide(raised: Raised, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return raised(*map(widened, operands))


def narrowest(sliced: GradientSlice) -> np.dtype:
    """What the module rounds the sum of all examples to on its way to the gradient, and not only a
    part of it.
    """
    if any(step.op.name == "stablehlo.add" for step in sliced.tail):
        return dtype_of(sliced.value)
    return min(
        (dtype_of(step.op.results[0]) for step in sliced.steps), key=lambda dtype: dtype.itemsize
    )


def _raise_wide(step: Step) -> Raised | None:
    op = step.op
    if len(op.results) != 1 or not mlir.is_inexact(op.results[0]) or mlir.is_complex(op.results[0]):
        return None
    if step.is_site:
        sums = SUMS.get(op.name)
        return sums(op, wide_dtype(dtype_of(op.results[0]))) if sums else None
    if op.name == "stablehlo.add":
        return single(_added)
    if op.name == "stablehlo.convert":
        return single(partial(_converted, wide_dtype(dtype_of(op.results[0]))))
    return moving(op) if op.name not in ("stablehlo.slice", "stablehlo.pad") else None


def _added(x: jax.Array, y: jax.Array) -> jax.Array:
    return widened(x) + widened(y)


def _converted(dtype: np.dtype, x: jax.Array) -> jax.Array:
    return lax.convert_element_type(x, max(x.dtype, dtype, key=lambda d: d.itemsize))
