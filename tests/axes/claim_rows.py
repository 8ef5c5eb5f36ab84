"""Small functions for `test_claims.py`: operand types, axes of the three examples, ops.

A row is a function that JAX lowers, whose last op is looked at, or text where JAX makes none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_surgery.passes.dataflow.axis import PerExample


@dataclass(frozen=True)
class Row:
    """`axes`: example axis by operand. `axis`: of the last value, for rows that are PerExample."""

    types: tuple[str, ...]
    made: str | Callable[..., Any]
    axes: dict[int, int]
    axis: PerExample | None = None


def row(op, axes, axis=None):
    """Of operand types, and text or a function."""
    types, made = op
    known = PerExample(axis) if isinstance(axis, int) else axis
    return Row(tuple(types), made, axes, known)


def of(types, function, axes=None, axis=None):
    """Of a function, and of types in a line; if nothing is said, the first has examples first."""
    return row((types.split(), function), {0: 0} if axes is None else axes, axis)


def lines(types, *ops):
    return types, "\n".join(ops)


def f64(shape):
    return f"tensor<{shape}xf64>" if shape else "tensor<f64>"


def total(value, shape, over, name="r"):
    """Sum over the first `over` dimensions, as two lines."""
    kept = "x".join(shape.split("x")[over:])
    dims = ", ".join(map(str, range(over)))
    zero = f"%{name}z = stablehlo.constant dense<0.0> : tensor<f64>"
    summed = (
        f"%{name} = stablehlo.reduce({value} init: %{name}z) applies stablehlo.add across "
        f"dimensions = [{dims}] : ({f64(shape)}, tensor<f64>) -> {f64(kept)}"
    )
    return f"{zero}\n{summed}"


def on_sum(*ops, others=()):
    """Ops on %sum, the sum over examples of %0, four features."""
    return row(lines(["3x4xf64", *others], total("%0", "3x4", 1, "sum"), *ops), {0: 0})


def of_sum(function, others="", x="3x4xf64", axes=None):
    """A function of the sum over examples, and of others."""
    return of(f"{x} {others}", lambda x, *more: function(x.sum(0), *more), axes)


def dot(contracting, batching=((), ())):
    return lambda x, y: lax.dot_general(x, y, (contracting, batching))


def convolution(numbers=("NWC", "WIO", "NWC"), padding="VALID", **groups):
    how = {"dimension_numbers": numbers, **groups}
    return lambda x, kernel: lax.conv_general_dilated(x, kernel, (1,), padding, **how)


def gather(sizes, offset, collapsed, starts, batching=((), ())):
    numbers = lax.GatherDimensionNumbers(offset, collapsed, starts, *batching)
    how = {"slice_sizes": sizes, "mode": "promise_in_bounds"}
    return lambda x, indices: lax.gather(x, indices, numbers, **how)


def scatter(window, inserted, starts, batching=((), ()), by=lax.scatter_add):
    numbers = lax.ScatterDimensionNumbers(window, inserted, starts, *batching)
    return partial(by, dimension_numbers=numbers, mode="promise_in_bounds")


def iota(shape, dimension):
    return lax.broadcasted_iota(jnp.int32, shape, dimension)


def integers(x):
    return lax.convert_element_type(x, jnp.int32)


def floats(x):
    return lax.convert_element_type(x, jnp.float64)


def cell(x, y):
    """The place [number, label] of each example, from both as columns."""
    return lax.concatenate([x, lax.reshape(y, (*y.shape, 1))], y.ndim)


def own_cell(labels):
    return cell(iota((3, 1), 0), labels)


cells = gather((1, 1), (), (0, 1), (0, 1))


def of_own_cells(numbers):
    """What is taken at these numbers and at the labels, beside the first feature."""

    def met(x, labels):
        first = lax.reshape(lax.slice(x, (0, 0), (3, 1)), (3,))
        return cells(x, cell(numbers(), labels)) * first

    return met


def own_scatter(x, labels, updates):
    return scatter((), (0, 1), (0, 1))(x, own_cell(labels), updates)


def whole(x):
    """A slice of all, which `lax.slice` leaves out."""
    return lax.slice_p.bind(x, start_indices=(0, 0), limit_indices=x.shape, strides=None)


def two_views(x, y):
    return lax.concatenate([x, y], 0)


def windowed(x, start, by, window, strides, padding="VALID"):
    return lax.reduce_window(x, start, by, window, strides, padding)


def rfft(length):
    return lambda x: lax.fft(x, lax.FftType.RFFT, (length,))


def solve(matrix, sides):
    return lax.linalg.triangular_solve(matrix, sides, left_side=True, lower=True)


def random_bits(key):
    three_fry = lax.RandomAlgorithm.RNG_THREE_FRY
    return lax.rng_bit_generator(key, (3, 4), np.uint64, three_fry)[1]


def square(x):
    return x * x


def small_slice(x, *starts, sizes):
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def updated(x, update, *starts):
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


SELECT_AND_SCATTER = (
    '%r = "stablehlo.select_and_scatter"(%0, %1, %2) <{window_dimensions = array<i64: 1, 2>, '
    "window_strides = array<i64: 1, 2>}> ({ ^bb0(%a: tensor<f64>, %b: tensor<f64>):\n"
    "%ge = stablehlo.compare GE, %a, %b : (tensor<f64>, tensor<f64>) -> tensor<i1>\n"
    "stablehlo.return %ge : tensor<i1> }, { ^bb0(%c: tensor<f64>, %d: tensor<f64>):\n"
    "%sum = stablehlo.add %c, %d : tensor<f64>\nstablehlo.return %sum : tensor<f64> }) : "
    "(tensor<3x4xf64>, tensor<3x2xf64>, tensor<f64>) -> tensor<3x4xf64>"
)

PER_EXAMPLE = {
    "tanh": of("3x4xf64", lax.tanh, axis=0),
    "multiply of two examples' values": of("4x3xf64 4x3xf64", lax.mul, {0: 1, 1: 1}, 1),
    "power by a shared value": of("3x4xf64 3x4xf64", lax.pow, axis=0),
    "select by the example": of("3x4xi1 3x4xf64 3x4xf64", lax.select, {0: 0, 1: 0, 2: 0}, 0),
    "clamp": row(
        (
            ["f64", "3x4xf64", "f64"],
            "%r = stablehlo.clamp %0, %1, %2 : (tensor<f64>, tensor<3x4xf64>, tensor<f64>) -> "
            "tensor<3x4xf64>",
        ),
        {1: 0},
        0,
    ),
    "convert to integers": of("3x4xf64", integers, axis=0),
    "integer remainder": of("3x4xi32 3x4xi32", lax.rem, {0: 0, 1: 0}, 0),
    "shift": of("3x4xui32 3x4xui32", lax.shift_left, axis=0),
    "bitcast_convert to a narrower type": of(
        "3x4xf64", lambda x: lax.bitcast_convert_type(x, jnp.float32), axis=0
    ),
    "complex parts": of(
        "3x4xf64 3x4xf64", lambda x, y: lax.imag(square(lax.complex(x, y))), {0: 0, 1: 0}, 0
    ),
    "dot_general by a weight": of("3x4xf64 4x5xf64", dot(((1,), (0,))), axis=0),
    "dot_general by a weight on the left": of("5x4xf64 3x4xf64", dot(((1,), (1,))), {1: 0}, 1),
    "dot_general batched over examples": of(
        "5x3x2xf64 3x2x4xf64", dot(((2,), (1,)), ((1,), (0,))), {0: 1, 1: 0}, 0
    ),
    "reduce over features": of(
        "3x4x2xf64 f64", lambda x, start: lax.reduce(x, start, lax.add, (1, 2)), axis=0
    ),
    "reduce max over features": of(
        "4x3xf64 f64", lambda x, start: lax.reduce(x, start, lax.max, (0,)), {0: 1}, 0
    ),
    "convolution of images": of("3x5x2xf64 3x2x4xf64", convolution(), axis=0),
    "convolution in feature groups": of(
        "3x5x4xf64 3x2x6xf64", convolution(feature_group_count=2), axis=0
    ),
    "convolution with a kernel for each example, in feature groups": of(
        "2x5x3x4xf64 3x4x3xf64",
        lambda x, kernel: convolution(feature_group_count=3)(
            lax.reshape(x, (2, 5, 12)), lax.reshape(lax.transpose(kernel, (1, 0, 2)), (1, 4, 9))
        ),
        {0: 2, 1: 0},
        PerExample(2, 1, 3),
    ),
    "gather from a table": of("7x2xf64 3x1xi32", gather((1, 2), (1,), (0,), (0,)), {1: 0}, 0),
    "gather of columns": of("3x7xf64 4x1xi32", gather((3, 1), (0,), (1,), (1,)), axis=0),
    "gather with batching dimensions": of(
        "3x7xf64 3x2x1xi32", gather((1, 1), (), (1,), (1,), ((0,), (0,))), {0: 0, 1: 0}, 0
    ),
    "gather x[arange(B), labels]": of(
        "3x4xf64 3xi32", lambda x, labels: cells(x, own_cell(labels)), {0: 0, 1: 0}, 0
    ),
    "gather x[arange(B), labels], clamped": of(
        "3x4xf64 3xi32",
        lambda x, labels: cells(
            x,
            lax.clamp(
                np.zeros((3, 2), np.int32), own_cell(labels), np.array([[2, 3]] * 3, np.int32)
            ),
        ),
        {0: 0, 1: 0},
        0,
    ),
    "gather of all, at no number": of("3x4xf64 0xi32", gather((3, 4), (0, 1), (), ()), axis=0),
    "scatter onto all, at no number": of(
        "3x4xf64 0xi32 3x4xf64", scatter((0, 1), (), ()), {2: 0}, 0
    ),
    "scatter at [arange(B), labels]": of("3x4xf64 3xi32 3xf64", own_scatter, {0: 0, 1: 0, 2: 0}, 0),
    "scatter with batching dimensions": of(
        "3x7xf64 3x2x1xi32 3x2xf64", scatter((), (1,), (1,), ((0,), (0,))), {0: 0, 1: 0, 2: 0}, 0
    ),
    "reshape merges examples and positions": of(
        "3x4x2xf64", lambda x: lax.reshape(x, (12, 2)), axis=PerExample(0, 1, 4)
    ),
    "reshape merges positions and examples": of(
        "4x3x2xf64", lambda x: lax.reshape(x, (12, 2)), {0: 1}, PerExample(0, 4, 1)
    ),
    "reshape merges and splits again": of(
        "4x3x2xf64",
        lambda x: lax.reshape(lax.reshape(x, (24,)), (2, 6, 2)),
        {0: 1},
        PerExample(1, 2, 1),
    ),
    "merged tokens through a dense layer": of(
        "4x3x2xf64 2x5xf64",
        lambda x, w: dot(((1,), (0,)))(lax.reshape(x, (12, 2)), w),
        {0: 1},
        PerExample(0, 4, 1),
    ),
    "transpose": of("2x3x4xf64", lambda x: lax.transpose(x, (2, 0, 1)), {0: 1}, 2),
    "broadcast_in_dim": of("3xf64", lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1,)), axis=1),
    "concatenate along features": of(
        "3x2xf64 3x1xf64", lambda x, y: lax.concatenate([x, y], 1), {0: 0, 1: 0}, 0
    ),
    "concatenate with a shared token": of(
        "3x2xf64 3x1xf64", lambda x, y: lax.concatenate([x, y], 1), axis=0
    ),
    "pad along features": of(
        "3x4xf64 f64", lambda x, z: lax.pad(x, z, [(0, 0, 0), (1, 0, 1)]), axis=0
    ),
    "slice of features": of("3x6xf64", lambda x: lax.slice(x, (0, 1), (3, 6), (1, 2)), axis=0),
    "reverse of features": of("3x4xf64", lambda x: lax.rev(x, (1,)), axis=0),
    "sort of features": of("3x4xf64", lax.sort, axis=0),
    "reduce_window over features, max pooling": of(
        "3x4xf64 f64", lambda x, start: windowed(x, start, lax.max, (1, 2), (1, 2)), axis=0
    ),
    "cumulative sum over features": of(
        "3x4xf64 f64",
        lambda x, start: windowed(x, start, lax.add, (1, 4), (1, 1), ((0, 0), (3, 0))),
        axis=0,
    ),
    "select_and_scatter, gradient of max pooling": row(
        (["3x4xf64", "3x2xf64", "f64"], SELECT_AND_SCATTER), {0: 0, 1: 0}, 0
    ),
    "fft of features": of("3x4xf64", rfft(4), axis=0),
    "triangular_solve of examples": of("3x2x2xf64 3x2x4xf64", solve, {0: 0, 1: 0}, 0),
    "cholesky of examples": row(
        (["3x2x2xf64"], "%r = stablehlo.cholesky %0, lower = true : tensor<3x2x2xf64>"), {0: 0}, 0
    ),
    "dynamic_slice of features": of(
        "3x4xf64 i32", lambda x, i: small_slice(x, np.int32(0), i, sizes=(3, 2)), axis=0
    ),
    "dynamic_update_slice of features": of(
        "3x4xf64 3x2xf64 i32", lambda x, y, i: updated(x, y, np.int32(0), i), {0: 0, 1: 0}, 0
    ),
    "one-hot by iota": of(
        "3xi32", lambda y: lax.eq(lax.broadcast_in_dim(y, (3, 4), (0,)), iota((3, 4), 1)), axis=0
    ),
    "rng added": of("3x4xf64 2xui64", lambda x, key: x * floats(random_bits(key)), axis=0),
    "one operand of a barrier": of(
        "3x4xf64 4xf64", lambda x, y: lax.optimization_barrier((y, x))[1], axis=0
    ),
    "reduce_precision": of("3x4xf64", lambda x: lax.reduce_precision(x, 5, 3), axis=0),
}

SUMMED = {
    "dot_general over examples": of("3x4xf64 3x5xf64", dot(((0,), (0,))), {0: 0, 1: 0}),
    "dot_general over examples and positions": of(
        "3x2x4xf64 2x5x3xf64", dot(((0, 1), (2, 0))), {0: 0, 1: 2}
    ),
    "dot_general over examples, batched over heads": of(
        "5x3x2xf64 3x5x4xf64", dot(((1,), (0,)), ((0,), (1,))), {0: 1, 1: 0}
    ),
    "dot_general with a shared cotangent": of("3x4xf64 3xf64", dot(((0,), (0,)))),
    "dot_general over merged examples": of(
        "4x3x2xf64 12x5xf64", lambda x, y: dot(((0,), (0,)))(lax.reshape(x, (12, 2)), y), {0: 1}
    ),
    "reduce": of("3x4xf64 f64", lambda x, start: lax.reduce(x, start, lax.add, (0,))),
    "reduce over examples and positions": of(
        "2x3x4xf64 f64", lambda x, start: lax.reduce(x, start, lax.add, (0, 1)), {0: 1}
    ),
    "reduce, add the other way round": of(
        "3xf64 f64", lambda x, start: lax.reduce(x, start, lambda a, b: b + a, (0,))
    ),
    "reduce two operands": of(
        "3xf64 3xf64 f64",
        lambda x, y, z: lax.reduce((x, y), (z, z), lambda a, b: (a[0] + b[0], b[1] + a[1]), (0,)),
        {0: 0, 1: 0},
    ),
    "filter gradient": of("5x3x2xf64 4x3x6xf64", convolution(("WCN", "WIO", "WNC")), {0: 1, 1: 1}),
    "filter gradient in batch groups": of(
        "5x3x4xf64 4x3x6xf64", convolution(("WCN", "WIO", "WNC"), batch_group_count=2), {0: 1, 1: 1}
    ),
    "scatter into a table": of("4x2xf64 3x1xi32 3x2xf64", scatter((1,), (0,), (0,)), {1: 0, 2: 0}),
    "scatter of examples and positions": of(
        "4x2xf64 3x5x1xi32 3x5x2xf64", scatter((2,), (0,), (0,)), {1: 0, 2: 0}
    ),
    "tail: transpose, reshape, scale, shift": of_sum(
        lambda s, w: -(w - w * lax.reshape(s.T, (8,)) / w), "8xf64", "3x2x4xf64"
    ),
    "tail: contraction with a weight": of_sum(dot(((0,), (0,))), "4x2xf64"),
    "tail: two sums added": of("3x4xf64 3x4xf64", lambda x, y: x.sum(0) + y.sum(0), {0: 0, 1: 0}),
    "tail: pad, slice, reverse, concatenate": of_sum(
        lambda s, z, y: lax.concatenate(
            [lax.rev(lax.slice(lax.pad(s, z, [(1, 0, 1)]), (1,), (7,), (2,)), (0,)), y], 0
        ),
        "f64 2xf64",
    ),
    "tail: select by a shared predicate": of_sum(lambda s, p, y: lax.select(p, s, y), "4xi1 4xf64"),
    "tail: windowed sum, a cumulative sum": of_sum(
        lambda s: windowed(s, 0.0, lax.add, (4,), (1,), ((3, 0),))
    ),
    "tail: reduce over features": of_sum(lambda s: s.sum(0)),
    "tail: Fourier transform, complex parts": of_sum(
        lambda s, y: lax.real(lax.complex(lax.imag(rfft(4)(s)), y)), "3xf64"
    ),
    "tail: triangular_solve with a shared matrix": of_sum(
        lambda s, m: solve(m, s), "2x2xf64", "3x2x1xf64"
    ),
    "tail: convolution with a shared kernel": of_sum(
        lambda s, k: convolution()(lax.reshape(s, (1, 5, 1)), lax.reshape(k, (2, 1, 1))),
        "2xf64",
        "3x5xf64",
    ),
    "tail: dynamic slices at a shared place": of_sum(
        lambda s, x, i: small_slice(updated(x, s, i), i, sizes=(2,)), "6xf64 i32"
    ),
    "tail: gather and scatter at shared places": of_sum(
        lambda s, i, x: scatter((), (0,), (0,))(x, i, gather((1,), (), (0,), (0,))(s, i)),
        "5x1xi32 6xf64",
    ),
    "tail: one result of a barrier": of_sum(
        lambda s, y: lax.optimization_barrier((y, square(s), s))[2], "4xf64"
    ),
}

SHARED = {
    "iota": of("3xf64", lambda _: iota((3,), 0)),
    "a weight of the examples' size": of("3xf64 3xf64", lambda _, w: lax.tanh(w)),
    "random bits": of("3x4xf64 2xui64", lambda _, key: random_bits(key)),
    "the other operand of a barrier": of(
        "3x4xf64 4xf64", lambda x, y: lax.optimization_barrier((x, y))[1]
    ),
}


def at_a_sum(function, others):
    """A function of what an index is made of, the sum of one feature."""
    return of_sum(lambda s, *more: function(integers(s), *more), others, "3xf64")


def scattered_sum(by):
    return of_sum(lambda s, x, i: scatter((), (0,), (0,), by=by)(x, i, s), "2xf64 4x1xi32")


def newton_schulz(total):
    m = lax.reshape(total, (2, 2))
    return dot(((1,), (0,)))(dot(((1,), (1,)))(m, m), m)


def views_behind_rows(x, y, pairs):
    rows = lax.reshape(pairs, (6, 4))
    behind = lax.concatenate([rows, two_views(x, y)], 0)
    return lax.slice(behind, (6, 0), (12, 4)) * rows


TRAPS = {
    "1 rows that slide along as many rows": of(
        "1x4x1xf64 4x1x1xf64", convolution(padding=[(1, 1)]), {0: 1, 1: 0}
    ),
    "1 sums multiplied by dot_general": of_sum(lambda s: dot(((0,), (0,)))(s, s)),
    "1 sums multiplied": of_sum(square),
    "1 sums convolved": of_sum(
        lambda s: convolution()(lax.reshape(s, (1, 4, 1)), lax.reshape(s, (4, 1, 1)))
    ),
    "1 a step of Newton and Schulz": of_sum(newton_schulz),
    "1 a sum times the examples": of(
        "3x4xf64", lambda x: (lax.broadcast_in_dim(x.sum(0), (3, 4), (1,)) * x).sum(0)
    ),
    "1 a sum contracted with the examples": of("3x4xf64", lambda x: dot(((1,), (0,)))(x, x.sum(0))),
    "2 a sum as the index of dynamic_slice": at_a_sum(
        lambda i, x: small_slice(x, i, sizes=(1,)), "8xf64"
    ),
    "2 a sum as the index of dynamic_update_slice": at_a_sum(
        lambda i, x, y: updated(x, y, i), "8xf64 2xf64"
    ),
    "2 a sum as the index of gather": at_a_sum(
        lambda i, x: gather((1,), (), (0,), (0,))(x, lax.reshape(i, (1,))), "8xf64"
    ),
    "2 a sum as a predicate": of_sum(lambda s, x, y: lax.select(lax.gt(s, x), x, y), "4xf64 4xf64"),
    "2 a sum as a divisor": of_sum(lambda s, x: x / s, "4xf64"),
    "2 a sum as the matrix of a solve": of_sum(
        lambda s, x: solve(lax.reshape(s, (2, 2)), x), "2x1xf64"
    ),
    "3 reduce max on a sum": of_sum(lambda s: lax.reduce(s, -np.inf, lax.max, (0,))),
    "3 reduce multiply on a sum": of_sum(lambda s: lax.reduce(s, 1.0, lax.mul, (0,))),
    "3 scatter max of a sum": scattered_sum(lax.scatter_max),
    "3 scatter multiply of a sum": scattered_sum(lax.scatter_mul),
    "3 reduce max over examples": of(
        "3x4xf64 f64", lambda x, start: lax.reduce(x, start, lax.max, (0,))
    ),
    "3 reduce of examples with sums crossed, then multiplied": of(
        "3xf64 3xf64 f64",
        lambda x, y, z: lax.reduce(
            (x, y), (z, z), lambda a, b: (a[0] + b[1], a[1] * b[0] + b[1]), (0,)
        ),
        {0: 0, 1: 0},
    ),
    "3 windowed maximum of a sum": of_sum(lambda s: windowed(s, 0.0, lax.max, (2,), (1,))),
    "4 a sum of integers divided": of(
        "3xf64",
        lambda x: floats(lax.div(lax.reduce(integers(x), np.int32(0), lax.add, (0,)), np.int32(2))),
    ),
    "4 a sum of bytes that wraps": of(
        "3xf64",
        lambda x: floats(
            lax.reduce((lax.tanh(x * x) * 100).astype(np.uint8), np.uint8(0), lax.add, (0,))
        ),
    ),
    "4 dot_general of booleans": row(
        lines(
            ["3xf64", "3xf64"],
            "%p = stablehlo.compare GT, %0, %1 : (tensor<3xf64>, tensor<3xf64>) -> tensor<3xi1>",
            "%sum = stablehlo.dot_general %p, %p, contracting_dims = [0] x [0] : "
            "(tensor<3xi1>, tensor<3xi1>) -> tensor<i1>",
            "%r = stablehlo.convert %sum : (tensor<i1>) -> tensor<f64>",
        ),
        {0: 0},
    ),
    "5 a sum converted to integers": of_sum(lambda s: floats(integers(s))),
    "8 a reshape that regroups": of(
        "3x2x3xf64", lambda x: lax.reduce(lax.reshape(x, (9, 2)), 1.0, lax.mul, (1,)), {0: 2}
    ),
    "examples reversed": of("3x4xf64", lambda x: x * lax.rev(x, (0,))),
    "examples sorted": of("3x4xf64", lambda x: lax.sort(x, dimension=0)),
    "a cumulative sum over examples, squared": of(
        "3x4xf64", lambda x: square(windowed(x, 0.0, lax.add, (3, 1), (1, 1), ((2, 0), (0, 0))))
    ),
    "a Fourier transform over examples, squared": of(
        "4x3xf64", lambda x: square(rfft(3)(x)), {0: 1}
    ),
    "a similarity of all pairs": of("3x4xf64 3x4xf64", dot(((1,), (1,))), {0: 0, 1: 0}),
    "a row of the table of examples for all": of(
        "3x4xf64 3x1xi32 3x4xf64",
        lambda x, i, y: gather((1, 4), (1,), (0,), (0,))(x, i) * y,
        {0: 0, 1: 0, 2: 0},
    ),
    "an index past the examples' own number": of(
        "3x4xf64 3xi32",
        of_own_cells(lambda: iota((3, 1), 0) + np.ones((3, 1), np.int32)),
        {0: 0, 1: 0},
    ),
    "3 reduce whose body adds a product": of_sum(
        lambda s: lax.reduce(s, 1.0, lambda a, b: a + a * b, (0,))
    ),
    "3 reduce of sums, one result of which is a product": of_sum(
        lambda s, z: lax.reduce((s, s), (z, z), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)),
        "f64",
    ),
    "the absolute value of a sum": of_sum(lax.abs),
    "a sum sorted": of_sum(lax.sort),
    "every other row of two views": of(
        "3x4xf64 3x4xf64",
        lambda x, y: whole(lax.slice(two_views(x, y), (0, 0), (6, 4), (2, 1))) * x,
        {0: 0, 1: 0},
    ),
    "examples with padding between them": of(
        "3x4xf64 f64",
        lambda x, z: lax.slice(lax.pad(x, z, [(0, 0, 1), (0, 0, 0)]), (0, 0), (3, 4)) * x,
    ),
    "views behind rows side by side": of(
        "3x4xf64 3x4xf64 3x2x4xf64", views_behind_rows, {0: 0, 1: 0, 2: 0}
    ),
    "an index that is the own number for some": of(
        "3x4xf64 3xi32", of_own_cells(lambda: np.array([[0], [1], [1]], np.int32)), {0: 0, 1: 0}
    ),
    "an own number counted along another dimension": of(
        "3x3xf64 3x3xi32",
        lambda x, labels: cells(x, cell(iota((3, 3, 1), 1), labels)),
        {0: 0, 1: 0},
    ),
    "own numbers along the features": of(
        "3x3xf64 3xi32", lambda x, labels: cells(x, own_cell(labels)), {0: 1, 1: 0}
    ),
    "several examples from each one's own number on": of(
        "3x4xf64",
        lambda x: (
            square(gather((2, 4), (1, 2), (), (0,))(x, iota((3, 1), 0)))
            * lax.broadcast_in_dim(x, (3, 2, 4), (0, 2))
        ),
    ),
}


def captured(line):
    """Over the rows of %d, by a body that adds something from outside."""
    return (
        "%z = stablehlo.constant dense<0.0> : tensor<f64>",
        '%r = "stablehlo.reduce"(%d, %z) <{dimensions = array<i64: 0>}> ({ ^bb0(%a: tensor<f64>, '
        "%b: tensor<f64>):\n"
        f"%m = stablehlo.maximum %a, %b : tensor<f64>\n{line}\n%u = stablehlo.add %m, %t : "
        "tensor<f64>\n"
        "stablehlo.return %u : tensor<f64> }) : (tensor<3x4xf64>, tensor<f64>) -> tensor<4xf64>",
    )


def solved(shape):
    return (
        f"%r = stablehlo.custom_call @lapack_dtrsm_ffi(%0, %1) {{mhlo.backend_config = {{side = 82 "
        f": ui8, uplo = 76 : ui8, trans_x = 78 : ui8, diag = 78 : ui8}}}} "
        f": (tensor<{shape}xf64>, tensor<{shape}xf64>) -> tensor<{shape}xf64>"
    )


# Mixed, though no execution can tell: XLA does not run these, or adds the examples up otherwise.
UNTOLD = {
    "scatter of examples onto a sum": of_sum(
        scatter((), (0,), (0,)), "3x1xi32 3xf64", axes={0: 0, 1: 0, 2: 0}
    ),
    "a body that captures an example's value": row(
        lines(
            ["3x4xf64", "3x4xf64"],
            "%d = stablehlo.negate %1 : tensor<3x4xf64>",
            *captured(
                "%t = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, "
                "1] : (tensor<3x4xf64>, tensor<f64>) -> tensor<f64>"
            ),
        ),
        {0: 0},
    ),
    "a body that captures a sum over the examples": row(
        lines(
            ["3x4xf64", "3x4xf64"],
            "%d = stablehlo.negate %1 : tensor<3x4xf64>",
            total("%0", "3x4", 2, "t"),
            *captured("%v = stablehlo.negate %t : tensor<f64>"),
        ),
        {0: 0},
    ),
    "a body that captures a parameter": row(
        lines(
            ["3x4xi32"],
            "%d = stablehlo.convert %0 : (tensor<3x4xi32>) -> tensor<3x4xf64>",
            *captured("%t = stablehlo.negate %w : tensor<f64>"),
        ),
        {0: 0},
    ),
    "a reduction within each example, on top of a sum over all": row(
        lines(
            ["3x4xf64"],
            total("%0", "3x4", 2, "sum"),
            "%r = stablehlo.reduce(%0 init: %sum) applies stablehlo.add across dimensions = [1] : "
            "(tensor<3x4xf64>, tensor<f64>) -> tensor<3xf64>",
        ),
        {0: 0},
    ),
    "a solve with a sum as its matrix": on_sum(
        "%m = stablehlo.reshape %sum : (tensor<4xf64>) -> tensor<2x2xf64>",
        solved("2x2").replace("%0", "%m"),
        others=["2x2xf64"],
    ),
    "a call of which nothing is known": row(
        lines(
            ["3x2x2xf64"],
            "%r = stablehlo.custom_call @unknown(%0) : (tensor<3x2x2xf64>) -> tensor<3x2x2xf64>",
        ),
        {0: 0},
    ),
}
