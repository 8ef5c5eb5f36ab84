"""Ops on arrays whose sizes are all 4: every dimension could be taken for any other.

`OPS`: functions of x, y [4, 4], z [4] in float64 and i [4] in int32, which JAX lowers. `TEXTS`: ops
that it does not make, by lines of one value each, of `$x`, `$y`, `$z` and `$i`.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.axes.claim_rows import whole
from tests.raising.op_snippets import adds

ONE, ROW, COLUMN = np.int32(1), (1, 4), (4, 1)
here = {"allow_negative_indices": False}


def padded(low, high, interior):
    return lambda x, *_: lax.pad(x, 0.0, list(zip(low, high, interior, strict=True)))


def roll(x, *_):
    return lax.concatenate([lax.slice(x, (1, 0), (4, 4)), lax.slice(x, (0, 0), (1, 4))], 0)


def halves(x, y, *_):
    even, odd = lax.slice(x, (0, 0), (4, 4), (2, 1)), lax.slice(y, (1, 0), (4, 4), (2, 1))
    return lax.concatenate([even, odd], 0)


def written(shape):
    """At [1, 1], what holds as much as z in this shape."""
    return lambda x, y, z, _: lax.dynamic_update_slice(x, lax.reshape(z, shape), (ONE, ONE), **here)


def in_columns(i):
    """Numbers as vectors of one."""
    return lax.reshape(i, COLUMN)


def at_one(_):
    return ONE[None]


def gathered(offset, collapsed, starts, sizes, batching=((), ()), at=in_columns):
    numbers = lax.GatherDimensionNumbers(offset, collapsed, starts, *batching)
    how = {"slice_sizes": sizes, "mode": "promise_in_bounds"}
    return lambda x, y, z, i: lax.gather(x, at(i), numbers, **how)


def scattered(window, inserted, starts, batching=((), ()), at=in_columns, by=lax.scatter_add):
    """Of y; row by row of z."""
    numbers = lax.ScatterDimensionNumbers(window, inserted, starts, *batching)
    add = partial(by, dimension_numbers=numbers, mode="promise_in_bounds")
    return lambda x, y, z, i: add(x, at(i), y if window else z)


def windowed(window, rows, columns, **more):
    """`rows`, `columns`: the padding of both dimensions."""
    return lambda x, *_: lax.reduce_window(x, 0.0, lax.add, window, (1, 1), (rows, columns), **more)


def strided_rows(x, *_):
    return lax.reduce_window(x, 0.0, lax.add, (1, 1), (2, 1), ((2, 1), (0, 0)))


def reduced(dimension, by=lax.add):
    return lambda x, *_: lax.reduce(x, 0.0, by, (dimension,))


def last(_, new):
    return new


def contracted(lhs, rhs, *batching):
    return lambda x, y, *_: lax.dot_general(x, y, ((lhs, rhs), batching or ((), ())))


def convolved(numbers, padding=(0, 0), lhs=(4, 4, 1), **groups):
    """With the first column of y."""

    def function(x, y, *_):
        kernel = lax.reshape(lax.slice(y, (0, 0), (4, 1)), (4, 1, 1))
        how = {"dimension_numbers": numbers, **groups}
        return lax.conv_general_dilated(lax.reshape(x, lhs), kernel, (1,), [padding], **how)

    return function


def solved(left_side):
    how = {"left_side": left_side, "lower": True, "unit_diagonal": True}
    return lambda x, y, *_: lax.linalg.triangular_solve(x, y, **how)


def largest_of_pairs(x):
    return lax.reduce_window(x, -np.inf, lax.max, (2, 1), (1, 1), ((1, 0), (0, 0)))


def transformed(*lengths):
    return lambda x, *_: lax.real(lax.fft(x, lax.FftType.RFFT, lengths))


def bitcast(x, *_):
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32), jnp.float64)


OPS = {
    "tanh": lambda x, *_: lax.tanh(x),
    "multiply": lambda x, y, *_: x * y,
    "reverse rows": lambda x, *_: lax.rev(x, (0,)),
    "reverse columns": lambda x, *_: lax.rev(x, (1,)),
    "transpose": lambda x, *_: lax.transpose(x, (1, 0)),
    "reshape": lambda x, *_: lax.reshape(lax.reshape(x, (16,)), (4, 4)),
    **{
        f"pad {low} {high} {interior}": padded(low, high, interior)
        for low, high, interior in [
            ([1, 0], [-1, 0], [0, 0]),
            ([-1, 0], [1, 0], [0, 0]),
            ([0, 2], [0, -2], [0, 0]),
            ([-1, 0], [-2, 0], [1, 0]),
            ([0, 0], [-3, 0], [1, 0]),
            ([-6, 1], [0, -1], [2, 0]),
            ([4, 0], [-4, 0], [0, 0]),
        ]
    },
    "slice": lambda x, *_: whole(x),
    "roll": roll,
    "halves": halves,
    "dynamic_slice": lambda x, *_: lax.dynamic_slice(x, (ONE, ONE), (4, 4), **here),
    "dynamic_slice of columns": lambda x, *_: lax.dynamic_slice(x, (ONE, ONE), COLUMN, **here),
    "dynamic_update_slice": lambda x, y, *_: lax.dynamic_update_slice(x, y, (ONE, ONE), **here),
    "dynamic_update_slice of one row": written(ROW),
    "dynamic_update_slice of one column": written(COLUMN),
    "gather rows": gathered((1,), (0,), (0,), ROW),
    "gather columns": gathered((0,), (1,), (1,), COLUMN),
    "gather a window of rows": gathered((0, 1), (), (0,), (4, 4), at=at_one),
    "gather row by row": gathered((), (1,), (1,), (1, 1), ((0,), (0,))),
    "scatter onto rows": scattered((1,), (0,), (0,)),
    "scatter over rows": scattered((1,), (0,), (0,), by=lax.scatter),
    "scatter onto columns": scattered((0,), (1,), (1,)),
    "scatter row by row": scattered((), (1,), (1,), ((0,), (0,))),
    "scatter a window of columns": scattered((0, 1), (), (0,), at=at_one),
    "sort rows": lambda x, *_: lax.sort(x, dimension=0),
    "sort columns": lambda x, *_: lax.sort(x, dimension=1),
    "sum of rows": reduced(0),
    "sum of columns": reduced(1),
    "last of rows": reduced(0, last),
    "window of neighbours": windowed((2, 1), (1, 0), (0, 0)),
    "window before": windowed((1, 1), (1, -1), (0, 0)),
    "window of dilated rows": windowed((1, 1), (-1, -2), (0, 0), base_dilation=(2, 1)),
    "window of strided rows": strided_rows,
    "window of ones": windowed((1, 1), (0, 0), (0, 0)),
    "cumulated columns": windowed((1, 4), (0, 0), (3, 0)),
    "matrix product": contracted((1,), (0,)),
    "product of columns": contracted((0,), (0,)),
    "rows with rows": contracted((1,), (1,), (0,), (0,)),
    "rows with columns": contracted((1,), (0,), (0,), (1,)),
    "inner product": contracted((0, 1), (0, 1)),
    "convolution along columns": convolved(("NWC", "WIO", "NWC"), (2, 1)),
    "convolution along rows": convolved(("WNC", "WIO", "WNC"), (2, 1)),
    "convolution in feature groups": convolved(
        ("NWC", "OWI", "NWC"), lhs=(4, 1, 4), feature_group_count=4
    ),
    "convolution in batch groups": convolved(
        ("NCW", "OIW", "NCW"), lhs=(4, 1, 4), batch_group_count=4
    ),
    "fft of columns": transformed(4),
    "fft of both": transformed(4, 4),
    "solve from the left": solved(True),
    "solve from the right": solved(False),
    "cholesky": lambda x, *_: lax.linalg.cholesky(x, symmetrize_input=False),
    "select_and_scatter": lambda x, y, *_: jax.vjp(largest_of_pairs, x)[1](y),
    "reduce_precision": lambda x, *_: lax.reduce_precision(x, 5, 10),
    "bitcast_convert": bitcast,
    "clamp": lambda x, y, *_: lax.clamp(y, x, y),
    "optimization_barrier": lambda x, *_: lax.optimization_barrier(x),
    "top_k": lambda x, *_: lax.top_k(x, 4),
    "broadcast": lambda x, y, z, _: lax.broadcast_in_dim(z, (4, 4), (1,)),
}

SQUARE, LINE = "tensor<4x4xf64>", "tensor<4xf64>"
ADD = f"({adds('f64')})"
TEXTS = {
    "convolution of moved rows": (
        f"stablehlo.reshape $x : ({SQUARE}) -> tensor<4x4x1xf64>",
        f"stablehlo.slice $y [0:4, 0:1] : ({SQUARE}) -> tensor<4x1xf64>",
        "stablehlo.reshape $1 : (tensor<4x1xf64>) -> tensor<4x1x1xf64>",
        "stablehlo.convolution($0, $2) dim_numbers = [0, b, f]x[0, i, o]->[0, b, f], window = "
        "{pad = [[1, 2]], reverse = [true]} {feature_group_count = 1 : i64, batch_group_count = "
        "1 : i64} : (tensor<4x4x1xf64>, tensor<4x1x1xf64>) -> tensor<4x4x1xf64>",
    ),
    "gather rows at plain numbers": (
        '"stablehlo.gather"($x, $i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
        f"slice_sizes = array<i64: 1, 4>}}> : ({SQUARE}, tensor<4xi32>) -> {SQUARE}",
    ),
    "scatter onto rows at plain numbers": (
        '"stablehlo.scatter"($x, $i, $y) <{scatter_dimension_numbers = #stablehlo.scatter<'
        "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = "
        f"[0], index_vector_dim = 1>}}> {ADD} : ({SQUARE}, tensor<4xi32>, {SQUARE}) -> {SQUARE}",
    ),
    "batch_norm_inference": (
        '"stablehlo.batch_norm_inference"($x, $z, $z, $z, $z) <{epsilon = 1.0e1 : f32, '
        "feature_index = 1 : i64}> : "
        f"({SQUARE}, {LINE}, {LINE}, {LINE}, {LINE}) -> {SQUARE}",
    ),
    "map": (
        f'"stablehlo.map"($x, $y) <{{dimensions = array<i64: 0, 1>}}> {ADD} : '
        f"({SQUARE}, {SQUARE}) -> {SQUARE}",
    ),
    "torch_index_select": (
        '"stablehlo.torch_index_select"($x, $i) <{dim = 0 : i64, batch_dims = 0 : i64}> : '
        f"({SQUARE}, tensor<4xi32>) -> {SQUARE}",
    ),
    "dot": (f"stablehlo.dot $x, $y : ({SQUARE}, {SQUARE}) -> {SQUARE}",),
    "einsum": (
        f'stablehlo.einsum $x, $y, config = "ab,bc->ac" : ({SQUARE}, {SQUARE}) -> {SQUARE}',
    ),
}


def lines(name, prefix="", **operands):
    """The text's lines. `operands`: the values that they take; `prefix`: of those they make."""
    names = {str(k): f"%r{prefix}{k}" for k in range(len(TEXTS[name]))} | operands
    filled = [re.sub(r"\$(\w+)", lambda token: names[token[1]], op) for op in TEXTS[name]]
    return [f"{names[str(k)]} = {op}" for k, op in enumerate(filled)]
