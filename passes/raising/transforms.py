"""Raising rules for linear transforms along dimensions: windowed sums, triangular solves, FFTs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.ir.attributes import integers, ones_unless_given, padding
from hlo_surgery.passes.ir.element_types import dtype_of, has_numbers
from hlo_surgery.passes.ir.linearity import added_results
from hlo_surgery.passes.ir.mlir import Operation, ir, stablehlo
from hlo_surgery.passes.raising.table import Raised, raises, single


@raises("stablehlo.reduce_window")
def reduce_window(op: Operation) -> Raised | None:
    """Sum over a sliding window, on top of the initial value; a body other than adds has no rule.

    StableHLO leaves open how often an initial value other than zero counts; here it is once in each
    window.
    """
    if not (all(added_results(op)) and has_numbers(op)):
        return None
    window, count, dtypes = (
        integers(op, "window_dimensions"),
        len(op.results),
        list(map(dtype_of, op.results)),
    )
    windowed_sum = partial(
        lax.reduce_window,
        computation=lax.add,
        window_dimensions=window,
        window_strides=ones_unless_given(op, "window_strides", len(window)),
        padding=padding(op, len(window)),
        base_dilation=ones_unless_given(op, "base_dilations", len(window)),
        window_dilation=ones_unless_given(op, "window_dilations", len(window)),
    )

    def windowed(value: jax.Array, initial: jax.Array, dtype: np.dtype) -> jax.Array:
        value, initial = (lax.convert_element_type(x, dtype) for x in (value, initial))
        return jnp.add(windowed_sum(value, np.zeros((), dtype)), initial)

    return lambda *operands: tuple(map(windowed, operands[:count], operands[count:], dtypes))


@raises("stablehlo.triangular_solve")
def triangular_solve(op: Operation) -> Raised:
    """Solve `op(a) x = b`, or `x op(a) = b`, for triangular `a`."""
    left_side, lower, unit_diagonal = (
        ir.BoolAttr(op.attributes[name]).value for name in ("left_side", "lower", "unit_diagonal")
    )
    transpose = stablehlo.TransposeAttr(op.attributes["transpose_a"]).value
    solve = partial(
        lax.linalg.triangular_solve,
        left_side=left_side,
        lower=lower,
        transpose_a=transpose in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=transpose == "ADJOINT",
        unit_diagonal=unit_diagonal,
    )
    return single(solve)


@raises("stablehlo.fft")
def fft(op: Operation) -> Raised:
    """Fourier transforms over the last dimensions: complex, real to complex, complex to real."""
    fft_type = getattr(lax.FftType, stablehlo.FftTypeAttr(op.attributes["fft_type"]).value)
    return single(partial(lax.fft, fft_type=fft_type, fft_lengths=integers(op, "fft_length")))
