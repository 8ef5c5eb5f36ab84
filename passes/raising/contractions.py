"""Raising rules for dot_general, convolution and reduce, which contract, often over the examples.

All sizes come from the operands at hand, since these may hold one example of the B that the op's
types tell of.

Raising rules for linear transforms along dimensions: windowed sums, triangular solves, FFTs.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of, has_numbers, wide_dtype
from hlo_surgery.passes.ir.mlir import Operation, stablehlo
from hlo_surgery.passes.ir.traits import (
    added_results,
    convolution_numbers,
    dot_numbers,
    flag,
    integer,
    integers,
    ones_unless_given,
    padding,
    precision,
    reversed_dimensions,
    solve_letters,
)
from hlo_surgery.passes.raising.raise_op import Raised, raises, single

Contract = Callable[[Array, Array, np.dtype], Array]


@raises("stablehlo.dot_general")
def dot_general(
    op: Operation, result: np.dtype | None = None, is_turned: bool = False
) -> Raised | None:
    """Contract any dimensions, batching any; into another element type, if `result` says so.
    `is_turned`: the second operand's own dimensions come before the first's.
    """
    numbers, how = dot_numbers(op), precision(op)
    left = numbers.lhs_contracting_dimensions, numbers.lhs_batching_dimensions
    right = numbers.rhs_contracting_dimensions, numbers.rhs_batching_dimensions
    if is_turned:
        how = how and (how[1], how[0])

    def contract(lhs: Array, rhs: Array, accumulator: np.dtype) -> Array:
        first, second = _without_ones(lhs, *left), _without_ones(rhs, *right)
        (x, summed, batch), (y, *others) = (second, first) if is_turned else (first, second)
        dims = (summed, others[0]), (batch, others[1])
        return lax.dot_general(x, y, dims, how, preferred_element_type=accumulator)

    return with_element_types(op, contract, result or dtype_of(op.result))


def _without_ones(
    x: Array, contracting: Sequence[int], batching: Sequence[int]
) -> tuple[Array, Sequence[int], Sequence[int]]:
    """An operand without contracted dimensions of size 1, as of one example's operands, and what is
    left to contract and to batch. With several to contract XLA for GPU may move a whole operand.
    """
    ones = [d for d in contracting if x.shape[d] == 1]
    if len(ones) in (0, len(contracting)):
        return x, contracting, batching
    kept = [d for d in range(x.ndim) if d not in ones]
    left = [kept.index(d) for d in contracting if d not in ones]
    return lax.squeeze(x, ones), left, list(map(kept.index, batching))


@raises("stablehlo.convolution")
def convolution(op: Operation) -> Raised | None:
    """Convolve with any dimension numbers, strides, padding, dilations, groups and reversal."""
    count, reversed_dims = len(mlir.shape(op.result)) - 2, reversed_dimensions(op)
    convolve = partial(
        lax.conv_general_dilated,
        window_strides=ones_unless_given(op, "window_strides", count),
        padding=padding(op, count),
        lhs_dilation=ones_unless_given(op, "lhs_dilation", count),
        rhs_dilation=ones_unless_given(op, "rhs_dilation", count),
        dimension_numbers=conv_dimensions(op),
        feature_group_count=integer(op, "feature_group_count"),
        batch_group_count=integer(op, "batch_group_count"),
        precision=precision(op),
    )

    def contract(lhs: Array, rhs: Array, accumulator: np.dtype) -> Array:
        return convolve(lhs, lax.rev(rhs, reversed_dims), preferred_element_type=accumulator)

    return with_element_types(op, contract, dtype_of(op.result))


@raises("stablehlo.reduce")
def reduce(op: Operation) -> Raised | None:
    """Sum over dimensions, on top of the initial value; a body other than adds has no rule.

    StableHLO leaves open how often an initial value other than zero counts; here it is once.
    """
    return _on_top(op, partial(lax.reduce_sum, axes=integers(op, "dimensions")))


def _on_top(op: Operation, summed: Callable[[Array], Array]) -> Raised | None:
    """Sums of each array on top of its initial value, in the element types of the results."""
    if not (all(added_results(op)) and has_numbers(op)):
        return None
    dtypes = [dtype_of(result) for result in op.results]

    def sums(*operands: Array) -> Arrays:
        values = list(map(lax.convert_element_type, operands, dtypes * 2))
        pairs = zip(values[: len(dtypes)], values[len(dtypes) :], strict=True)
        return tuple(jnp.add(summed(value), initial) for value, initial in pairs)

    return sums


def with_element_types(op: Operation, contract: Contract, result: np.dtype) -> Raised | None:
    """Contract into `result`, as accumulator too, or an operand's element type if wider, or
    float32 where neither holds all operands' numbers, as of 8 bits.
    """
    lhs, rhs = map(dtype_of, op.operands)
    widest = max((result, lhs, rhs), key=lambda dtype: dtype.itemsize)
    fitting = (
        d for d in (widest, wide_dtype(widest)) if all(np.can_cast(x, d) for x in (lhs, rhs))
    )
    accumulator = next(fitting, None)
    if accumulator is None or not has_numbers(op):
        return None
    same_kind = jnp.issubdtype(lhs, jnp.inexact) == jnp.issubdtype(accumulator, jnp.inexact)
    operand_dtype = lhs if lhs == rhs and same_kind else accumulator

    def contracted(left: Array, right: Array) -> Array:
        left, right = (
            x if x.dtype == result else lax.convert_element_type(x, operand_dtype)
            for x in (left, right)
        )
        return lax.convert_element_type(contract(left, right, accumulator), result)

    return single(contracted)


def conv_dimensions(op: Operation) -> lax.ConvDimensionNumbers:
    """The dimensions of a convolution's image, window and result, as JAX has them: examples or
    features of the result, features, and then the places.
    """
    of = convolution_numbers(op)
    image = of.input_batch_dimension, of.input_feature_dimension
    window = of.kernel_output_feature_dimension, of.kernel_input_feature_dimension
    result = of.output_batch_dimension, of.output_feature_dimension
    return lax.ConvDimensionNumbers(
        (*image, *of.input_spatial_dimensions),
        (*window, *of.kernel_spatial_dimensions),
        (*result, *of.output_spatial_dimensions),
    )


@raises("stablehlo.reduce_window")
def reduce_window(op: Operation) -> Raised | None:
    """Sum over a sliding window, on top of the initial value; a body other than adds has no rule.

    StableHLO leaves open how often an initial value other than zero counts; here it is once in each
    window.
    """
    window = integers(op, "window_dimensions")
    windowed_sum = partial(
        lax.reduce_window,
        computation=lax.add,
        window_dimensions=window,
        window_strides=ones_unless_given(op, "window_strides", len(window)),
        padding=padding(op, len(window)),
        base_dilation=ones_unless_given(op, "base_dilations", len(window)),
        window_dilation=ones_unless_given(op, "window_dilations", len(window)),
    )
    return _on_top(op, lambda x: windowed_sum(x, np.zeros((), x.dtype)))


@raises("stablehlo.triangular_solve")
def triangular_solve(op: Operation) -> Raised:
    """Solve `op(a) x = b`, or `x op(a) = b`, for triangular `a`."""
    how = {name: flag(op, name) for name in ("left_side", "lower", "unit_diagonal")}
    transpose = stablehlo.TransposeAttr(op.attributes["transpose_a"]).value
    solve = partial(
        lax.linalg.triangular_solve,
        transpose_a=transpose in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=transpose == "ADJOINT",
        **how,
    )
    return single(solve)


@raises("stablehlo.custom_call")
def solve_call(op: Operation) -> Raised | None:
    """A triangular solve by LAPACK, if it says how; no rule for any other call."""
    how = solve_letters(op)
    if how is None:
        return None
    solve = partial(
        lax.linalg.triangular_solve,
        left_side=how["side"] == "L",
        lower=how["uplo"] == "L",
        transpose_a=how["trans_x"] != "N",
        conjugate_a=how["trans_x"] == "C",
        unit_diagonal=how["diag"] == "U",
    )
    return single(solve)


@raises("stablehlo.fft")
def fft(op: Operation) -> Raised:
    """Fourier transforms over the last dimensions: complex, real to complex, complex to real."""
    fft_type = getattr(lax.FftType, stablehlo.FftTypeAttr(op.attributes["fft_type"]).value)
    return single(partial(lax.fft, fft_type=fft_type, fft_lengths=integers(op, "fft_length")))
