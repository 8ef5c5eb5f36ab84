"""Small functions for `test_claims.py`: operand types, axes of the three examples, ops."""

from dataclasses import dataclass

from hlo_surgery.passes.dataflow.axis import PerExample
from tests.raising.op_snippets import (
    ROWS_BY_INDEX,
    adds,
    convolution,
    dot,
    elementwise,
    gather,
    generic,
    i64s,
    reduce,
    scalar_body,
    scatter,
    solve,
    typed,
)


@dataclass(frozen=True)
class Row:
    """`axes`: example axis by operand. `axis`: of the last value, for rows that are PerExample."""

    types: tuple[str, ...]
    text: str
    axes: dict[int, int]
    axis: PerExample | None = None


def row(op, axes, axis=None):
    types, text = op
    known = PerExample(axis) if isinstance(axis, int) else axis
    return Row(tuple(types), text, axes, known)


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
        f"dimensions = [{dims}] : "
        f"({f64(shape)}, tensor<f64>) -> {f64(kept)}"
    )
    return f"{zero}\n{summed}"


def counting(name, kind):
    return f"%{name} = stablehlo.iota dim = 0 : tensor<{kind}>"


WINDOW = ", ".join(
    [
        "window_dimensions = array<i64: {w}>",
        "window_strides = array<i64: {s}>",
        "padding = dense<{p}> : tensor<2x2xi64>",
    ]
)
OWN_LABELS = (
    "%n = stablehlo.iota dim = 0 : tensor<3x1xi32>",
    "%c = stablehlo.reshape %1 : (tensor<3xi32>) -> tensor<3x1xi32>",
    "%i = stablehlo.concatenate %n, %c, dim = 1 : (tensor<3x1xi32>, tensor<3x1xi32>) -> "
    "tensor<3x2xi32>",
)
CLAMPED_LABELS = (
    *(line.replace("%i =", "%j =") for line in OWN_LABELS),
    "%low = stablehlo.constant dense<0> : tensor<3x2xi32>",
    "%high = stablehlo.constant dense<[[2, 3], [2, 3], [2, 3]]> : tensor<3x2xi32>",
    "%i = stablehlo.clamp %low, %j, %high : tensor<3x2xi32>",
)
OWN_GATHER = (
    '%r = "stablehlo.gather"(%0, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims '
    "= [0, 1], "
    "start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : "
    "(tensor<3x4xf64>, tensor<3x2xi32>) -> tensor<3xf64>"
)


ON_OWN_GATHER = (
    OWN_GATHER.replace("%r =", "%g ="),
    "%h = stablehlo.slice %0 [0:3, 0:1] : (tensor<3x4xf64>) -> tensor<3x1xf64>",
    "%k = stablehlo.reshape %h : (tensor<3x1xf64>) -> tensor<3xf64>",
    "%r = stablehlo.multiply %g, %k : tensor<3xf64>",
)
TWO_VIEWS = (
    "%v = stablehlo.concatenate %0, %1, dim = 0 : (tensor<3x4xf64>, tensor<3x4xf64>) -> "
    "tensor<6x4xf64>"
)


def own_scatter(operand, region):
    return (
        f'%r = "stablehlo.scatter"({operand}, %i, %2) <{{scatter_dimension_numbers = '
        "#stablehlo.scatter<"
        "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = "
        "1>}> "
        f"({region}) : (tensor<3x4xf64>, tensor<3x2xi32>, tensor<3xf64>) -> tensor<3x4xf64>"
    )


SORT = (
    '%r = "stablehlo.sort"(%0) <{{dimension = {} : i64}}> ({{ ^bb0(%a: tensor<f64>, %b: '
    "tensor<f64>):\n"
    "%lt = stablehlo.compare LT, %a, %b : (tensor<f64>, tensor<f64>) -> tensor<i1>\n"
    "stablehlo.return %lt : tensor<i1> }}) : (tensor<3x4xf64>) -> tensor<3x4xf64>"
)
SELECT_AND_SCATTER = (
    '%r = "stablehlo.select_and_scatter"(%0, %1, %2) <{window_dimensions = array<i64: 1, 2>, '
    "window_strides = array<i64: 1, 2>}> ({ ^bb0(%a: tensor<f64>, %b: tensor<f64>):\n"
    "%ge = stablehlo.compare GE, %a, %b : (tensor<f64>, tensor<f64>) -> tensor<i1>\n"
    "stablehlo.return %ge : tensor<i1> }, { ^bb0(%c: tensor<f64>, %d: tensor<f64>):\n"
    "%sum = stablehlo.add %c, %d : tensor<f64>\nstablehlo.return %sum : tensor<f64> }) : "
    "(tensor<3x4xf64>, tensor<3x2xf64>, tensor<f64>) -> tensor<3x4xf64>"
)
TWO_REDUCED = (
    '%t, %r = "stablehlo.reduce"(%0, %1, %2, %2) <{{dimensions = array<i64: 0>}}> ({{ '
    "^bb0(%a: tensor<f64>, %b: tensor<f64>, %c: tensor<f64>, %d: tensor<f64>):\n"
    "{}\nstablehlo.return %sum, %u : tensor<f64>, tensor<f64> }}) : "
    "(tensor<3xf64>, tensor<3xf64>, tensor<f64>, tensor<f64>) -> (tensor<f64>, tensor<f64>)"
)

PER_EXAMPLE = {
    "tanh": row(typed(["3x4xf64"], "3x4xf64", "stablehlo.tanh"), {0: 0}, 0),
    "multiply of two examples' values": row(elementwise("multiply", "4x3xf64", 2), {0: 1, 1: 1}, 1),
    "power by a shared value": row(elementwise("power", "3x4xf64", 2), {0: 0}, 0),
    "select by the example": row(
        (
            ["3x4xi1", "3x4xf64", "3x4xf64"],
            "%r = stablehlo.select %0, %1, %2 : tensor<3x4xi1>, tensor<3x4xf64>",
        ),
        {0: 0, 1: 0, 2: 0},
        0,
    ),
    "clamp": row(
        (
            ["f64", "3x4xf64", "f64"],
            "%r = stablehlo.clamp %0, %1, %2 : (tensor<f64>, tensor<3x4xf64>, tensor<f64>) -> "
            "tensor<3x4xf64>",
        ),
        {1: 0},
        0,
    ),
    "convert to integers": row(typed(["3x4xf64"], "3x4xi32", "stablehlo.convert"), {0: 0}, 0),
    "integer remainder": row(elementwise("remainder", "3x4xi32", 2), {0: 0, 1: 0}, 0),
    "shift": row(elementwise("shift_left", "3x4xui32", 2), {0: 0}, 0),
    "bitcast_convert to a narrower type": row(
        typed(["3x4xf64"], "3x4x2xf32", "stablehlo.bitcast_convert"), {0: 0}, 0
    ),
    "complex parts": row(
        lines(
            ["3x4xf64", "3x4xf64"],
            "%c = stablehlo.complex %0, %1 : tensor<3x4xcomplex<f64>>",
            "%m = stablehlo.multiply %c, %c : tensor<3x4xcomplex<f64>>",
            "%r = stablehlo.imag %m : (tensor<3x4xcomplex<f64>>) -> tensor<3x4xf64>",
        ),
        {0: 0, 1: 0},
        0,
    ),
    "dot_general by a weight": row(
        dot("3x4xf64", "4x5xf64", "3x5xf64", "contracting_dims = [1] x [0]"), {0: 0}, 0
    ),
    "dot_general by a weight on the left": row(
        dot("5x4xf64", "3x4xf64", "5x3xf64", "contracting_dims = [1] x [1]"), {1: 0}, 1
    ),
    "dot_general batched over examples": row(
        dot(
            "5x3x2xf64",
            "3x2x4xf64",
            "3x5x4xf64",
            "batching_dims = [1] x [0], contracting_dims = [2] x [1]",
        ),
        {0: 1, 1: 0},
        0,
    ),
    "reduce over features": row(reduce("3x4x2xf64", "f64", "3xf64", [1, 2]), {0: 0}, 0),
    "reduce max over features": row(
        reduce("4x3xf64", "f64", "3xf64", [0], adds("f64", "maximum")), {0: 1}, 0
    ),
    "convolution of images": row(
        convolution("3x5x2xf64", "3x2x4xf64", "3x3x4xf64", "[b, 0, f]x[0, i, o]->[b, 0, f]"),
        {0: 0},
        0,
    ),
    "convolution in feature groups": row(
        convolution(
            "3x5x4xf64",
            "3x2x6xf64",
            "3x3x6xf64",
            "[b, 0, f]x[0, i, o]->[b, 0, f]",
            feature_groups=2,
        ),
        {0: 0},
        0,
    ),
    "convolution with a kernel for each example, in feature groups": row(
        lines(
            ["2x5x3x4xf64", "3x4x3xf64"],
            "%x = stablehlo.reshape %0 : (tensor<2x5x3x4xf64>) -> tensor<2x5x12xf64>",
            "%k = stablehlo.transpose %1, dims = [1, 0, 2] : (tensor<3x4x3xf64>) -> "
            "tensor<4x3x3xf64>",
            "%l = stablehlo.reshape %k : (tensor<4x3x3xf64>) -> tensor<1x4x9xf64>",
            "%r = stablehlo.convolution(%x, %l) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], "
            "window = {} "
            "{batch_group_count = 1 : i64, feature_group_count = 3 : i64} : "
            "(tensor<2x5x12xf64>, tensor<1x4x9xf64>) -> tensor<2x5x9xf64>",
        ),
        {0: 2, 1: 0},
        PerExample(2, 1, 3),
    ),
    "gather from a table": row(
        gather(
            "7x2xf64",
            "3x1xi32",
            "3x2xf64",
            "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], "
            "index_vector_dim = 1",
            [1, 2],
        ),
        {1: 0},
        0,
    ),
    "gather of columns": row(
        gather(
            "3x7xf64",
            "4x1xi32",
            "3x4xf64",
            "offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], "
            "index_vector_dim = 1",
            [3, 1],
        ),
        {0: 0},
        0,
    ),
    "gather with batching dimensions": row(
        gather(
            "3x7xf64",
            "3x2x1xi32",
            "3x2xf64",
            "collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims "
            "= [0], "
            "start_index_map = [1], index_vector_dim = 2",
            [1, 1],
        ),
        {0: 0, 1: 0},
        0,
    ),
    "gather x[arange(B), labels]": row(
        lines(["3x4xf64", "3xi32"], *OWN_LABELS, OWN_GATHER), {0: 0, 1: 0}, 0
    ),
    "gather x[arange(B), labels], clamped": row(
        lines(["3x4xf64", "3xi32"], *CLAMPED_LABELS, OWN_GATHER), {0: 0, 1: 0}, 0
    ),
    "gather of all, at no number": row(
        gather("3x4xf64", "0xi32", "3x4xf64", "offset_dims = [0, 1], index_vector_dim = 0", [3, 4]),
        {0: 0},
        0,
    ),
    "scatter onto all, at no number": row(
        scatter(
            ["3x4xf64", "0xi32", "3x4xf64"],
            "update_window_dims = [0, 1], index_vector_dim = 0",
            adds("f64"),
        ),
        {2: 0},
        0,
    ),
    "scatter at [arange(B), labels]": row(
        lines(["3x4xf64", "3xi32", "3xf64"], *OWN_LABELS, own_scatter("%0", adds("f64"))),
        {0: 0, 1: 0, 2: 0},
        0,
    ),
    "scatter with batching dimensions": row(
        scatter(
            ["3x7xf64", "3x2x1xi32", "3x2xf64"],
            "inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims "
            "= [0], "
            "scatter_dims_to_operand_dims = [1], index_vector_dim = 2",
            adds("f64"),
        ),
        {0: 0, 1: 0, 2: 0},
        0,
    ),
    "reshape merges examples and positions": row(
        typed(["3x4x2xf64"], "12x2xf64", "stablehlo.reshape"), {0: 0}, PerExample(0, 1, 4)
    ),
    "reshape merges positions and examples": row(
        typed(["4x3x2xf64"], "12x2xf64", "stablehlo.reshape"), {0: 1}, PerExample(0, 4, 1)
    ),
    "reshape merges and splits again": row(
        lines(
            ["4x3x2xf64"],
            "%m = stablehlo.reshape %0 : (tensor<4x3x2xf64>) -> tensor<24xf64>",
            "%r = stablehlo.reshape %m : (tensor<24xf64>) -> tensor<2x6x2xf64>",
        ),
        {0: 1},
        PerExample(1, 2, 1),
    ),
    "merged tokens through a dense layer": row(
        lines(
            ["4x3x2xf64", "2x5xf64"],
            "%m = stablehlo.reshape %0 : (tensor<4x3x2xf64>) -> tensor<12x2xf64>",
            "%r = stablehlo.dot_general %m, %1, contracting_dims = [1] x [0] : "
            "(tensor<12x2xf64>, tensor<2x5xf64>) -> tensor<12x5xf64>",
        ),
        {0: 1},
        PerExample(0, 4, 1),
    ),
    "transpose": row(
        typed(["2x3x4xf64"], "4x2x3xf64", "stablehlo.transpose", ", dims = [2, 0, 1]"), {0: 1}, 2
    ),
    "broadcast_in_dim": row(
        typed(["3xf64"], "2x3x4xf64", "stablehlo.broadcast_in_dim", ", dims = [1]"), {0: 0}, 1
    ),
    "concatenate along features": row(
        typed(["3x2xf64", "3x1xf64"], "3x3xf64", "stablehlo.concatenate", ", dim = 1"),
        {0: 0, 1: 0},
        0,
    ),
    "concatenate with a shared token": row(
        typed(["3x2xf64", "3x1xf64"], "3x3xf64", "stablehlo.concatenate", ", dim = 1"), {0: 0}, 0
    ),
    "pad along features": row(
        typed(
            ["3x4xf64", "f64"],
            "3x8xf64",
            "stablehlo.pad",
            ", low = [0, 1], high = [0, 0], interior = [0, 1]",
        ),
        {0: 0},
        0,
    ),
    "slice of features": row(
        (
            ["3x6xf64"],
            "%r = stablehlo.slice %0 [0:3, 1:6:2] : (tensor<3x6xf64>) -> tensor<3x3xf64>",
        ),
        {0: 0},
        0,
    ),
    "reverse of features": row(
        (["3x4xf64"], "%r = stablehlo.reverse %0, dims = [1] : tensor<3x4xf64>"), {0: 0}, 0
    ),
    "sort of features": row((["3x4xf64"], SORT.format(1)), {0: 0}, 0),
    "reduce_window over features, max pooling": row(
        generic(
            ["3x4xf64", "f64"],
            "3x2xf64",
            "stablehlo.reduce_window",
            i64s(window_dimensions=[1, 2], window_strides=[1, 2]),
            adds("f64", "maximum"),
        ),
        {0: 0},
        0,
    ),
    "cumulative sum over features": row(
        generic(
            ["3x4xf64", "f64"],
            "3x4xf64",
            "stablehlo.reduce_window",
            i64s(window_dimensions=[1, 4])
            + ", padding = dense<[[0, 0], [3, 0]]> : tensor<2x2xi64>",
            adds("f64"),
        ),
        {0: 0},
        0,
    ),
    "select_and_scatter, gradient of max pooling": row(
        (["3x4xf64", "3x2xf64", "f64"], SELECT_AND_SCATTER), {0: 0, 1: 0}, 0
    ),
    "fft of features": row(
        typed(["3x4xf64"], "3x3xcomplex<f64>", "stablehlo.fft", ", type = RFFT, length = [4]"),
        {0: 0},
        0,
    ),
    "triangular_solve of examples": row(solve("f64", "3x2x2x", "3x2x4x"), {0: 0, 1: 0}, 0),
    "cholesky of examples": row(
        (["3x2x2xf64"], "%r = stablehlo.cholesky %0, lower = true : tensor<3x2x2xf64>"), {0: 0}, 0
    ),
    "dynamic_slice of features": row(
        lines(
            ["3x4xf64", "i32"],
            "%z = stablehlo.constant dense<0> : tensor<i32>",
            "%r = stablehlo.dynamic_slice %0, %z, %1, sizes = [3, 2] : "
            "(tensor<3x4xf64>, tensor<i32>, tensor<i32>) -> tensor<3x2xf64>",
        ),
        {0: 0},
        0,
    ),
    "dynamic_update_slice of features": row(
        lines(
            ["3x4xf64", "3x2xf64", "i32"],
            "%z = stablehlo.constant dense<0> : tensor<i32>",
            "%r = stablehlo.dynamic_update_slice %0, %1, %z, %2 : "
            "(tensor<3x4xf64>, tensor<3x2xf64>, tensor<i32>, tensor<i32>) -> tensor<3x4xf64>",
        ),
        {0: 0, 1: 0},
        0,
    ),
    "one-hot by iota": row(
        lines(
            ["3xi32"],
            "%n = stablehlo.iota dim = 1 : tensor<3x4xi32>",
            "%l = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<3xi32>) -> tensor<3x4xi32>",
            "%r = stablehlo.compare EQ, %l, %n : (tensor<3x4xi32>, tensor<3x4xi32>) -> "
            "tensor<3x4xi1>",
        ),
        {0: 0},
        0,
    ),
    "rng added": row(
        lines(
            ["3x4xf64", "2xui64"],
            "%sum, %b = stablehlo.rng_bit_generator %1, algorithm = THREE_FRY : "
            "(tensor<2xui64>) -> (tensor<2xui64>, tensor<3x4xui64>)",
            "%f = stablehlo.convert %b : (tensor<3x4xui64>) -> tensor<3x4xf64>",
            "%r = stablehlo.multiply %0, %f : tensor<3x4xf64>",
        ),
        {0: 0},
        0,
    ),
    "one operand of a barrier": row(
        lines(
            ["3x4xf64", "4xf64"],
            "%r0, %r = stablehlo.optimization_barrier %1, %0 : tensor<4xf64>, tensor<3x4xf64>",
        ),
        {0: 0},
        0,
    ),
    "reduce_precision": row(
        (["3x4xf64"], "%r = stablehlo.reduce_precision %0, format = e5m3 : tensor<3x4xf64>"),
        {0: 0},
        0,
    ),
}

SUMMED = {
    "dot_general over examples": row(
        dot("3x4xf64", "3x5xf64", "4x5xf64", "contracting_dims = [0] x [0]"), {0: 0, 1: 0}
    ),
    "dot_general over examples and positions": row(
        dot("3x2x4xf64", "2x5x3xf64", "4x5xf64", "contracting_dims = [0, 1] x [2, 0]"), {0: 0, 1: 2}
    ),
    "dot_general over examples, batched over heads": row(
        dot(
            "5x3x2xf64",
            "3x5x4xf64",
            "5x2x4xf64",
            "batching_dims = [0] x [1], contracting_dims = [1] x [0]",
        ),
        {0: 1, 1: 0},
    ),
    "dot_general with a shared cotangent": row(
        dot("3x4xf64", "3xf64", "4xf64", "contracting_dims = [0] x [0]"), {0: 0}
    ),
    "dot_general over merged examples": row(
        lines(
            ["4x3x2xf64", "12x5xf64"],
            "%m = stablehlo.reshape %0 : (tensor<4x3x2xf64>) -> tensor<12x2xf64>",
            "%r = stablehlo.dot_general %m, %1, contracting_dims = [0] x [0] : "
            "(tensor<12x2xf64>, tensor<12x5xf64>) -> tensor<2x5xf64>",
        ),
        {0: 1},
    ),
    "reduce": row(reduce("3x4xf64", "f64", "4xf64", [0]), {0: 0}),
    "reduce over examples and positions": row(reduce("2x3x4xf64", "f64", "4xf64", [0, 1]), {0: 1}),
    "reduce, add the other way round": row(
        reduce(
            "3xf64",
            "f64",
            "f64",
            [0],
            scalar_body("f64", "%sum = stablehlo.add %b, %a : tensor<f64>", returned="sum"),
        ),
        {0: 0},
    ),
    "reduce two operands": row(
        (
            ["3xf64", "3xf64", "f64"],
            TWO_REDUCED.format(
                "%sum = stablehlo.add %a, %c : tensor<f64>\n%u = stablehlo.add %d, %b : tensor<f64>"
            ),
        ),
        {0: 0, 1: 0},
    ),
    "filter gradient": row(
        convolution(
            "5x3x2xf64",
            "4x3x6xf64",
            "2x2x6xf64",
            "[0, b, f]x[0, i, o]->[0, b, f]".replace("b, f]x", "f, b]x"),
        ),
        {0: 1, 1: 1},
    ),
    "filter gradient in batch groups": row(
        convolution(
            "5x3x4xf64", "4x3x6xf64", "2x2x6xf64", "[0, f, b]x[0, i, o]->[0, b, f]", batch_groups=2
        ),
        {0: 1, 1: 1},
    ),
    "scatter into a table": row(
        scatter(
            ["4x2xf64", "3x1xi32", "3x2xf64"], ROWS_BY_INDEX + ", index_vector_dim = 1", adds("f64")
        ),
        {1: 0, 2: 0},
    ),
    "scatter of examples and positions": row(
        scatter(
            ["4x2xf64", "3x5x1xi32", "3x5x2xf64"],
            "update_window_dims = [2], inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 2",
            adds("f64"),
        ),
        {1: 0, 2: 0},
    ),
    "tail: transpose, reshape, scale, shift": row(
        lines(
            ["3x2x4xf64", "8xf64"],
            total("%0", "3x2x4", 1, "sum"),
            "%t = stablehlo.transpose %sum, dims = [1, 0] : (tensor<2x4xf64>) -> tensor<4x2xf64>",
            "%u = stablehlo.reshape %t : (tensor<4x2xf64>) -> tensor<8xf64>",
            "%v = stablehlo.multiply %1, %u : tensor<8xf64>",
            "%x = stablehlo.divide %v, %1 : tensor<8xf64>",
            "%y = stablehlo.subtract %1, %x : tensor<8xf64>",
            "%r = stablehlo.negate %y : tensor<8xf64>",
        ),
        {0: 0},
    ),
    "tail: contraction with a weight": row(
        lines(
            ["3x4xf64", "4x2xf64"],
            total("%0", "3x4", 1, "sum"),
            "%r = stablehlo.dot_general %sum, %1, contracting_dims = [0] x [0] : "
            "(tensor<4xf64>, tensor<4x2xf64>) -> tensor<2xf64>",
        ),
        {0: 0},
    ),
    "tail: two sums added": row(
        lines(
            ["3x4xf64", "3x4xf64"],
            total("%0", "3x4", 1, "sum"),
            total("%1", "3x4", 1, "t"),
            "%r = stablehlo.add %sum, %t : tensor<4xf64>",
        ),
        {0: 0, 1: 0},
    ),
    "tail: pad, slice, reverse, concatenate": row(
        lines(
            ["3x4xf64", "f64", "2xf64"],
            total("%0", "3x4", 1, "sum"),
            "%p = stablehlo.pad %sum, %1, low = [1], high = [0], interior = [1] : "
            "(tensor<4xf64>, tensor<f64>) -> tensor<8xf64>",
            "%l = stablehlo.slice %p [1:7:2] : (tensor<8xf64>) -> tensor<3xf64>",
            "%v = stablehlo.reverse %l, dims = [0] : tensor<3xf64>",
            "%r = stablehlo.concatenate %v, %2, dim = 0 : (tensor<3xf64>, tensor<2xf64>) -> "
            "tensor<5xf64>",
        ),
        {0: 0},
    ),
    "tail: select by a shared predicate": row(
        lines(
            ["3x4xf64", "4xi1", "4xf64"],
            total("%0", "3x4", 1, "sum"),
            "%r = stablehlo.select %1, %sum, %2 : tensor<4xi1>, tensor<4xf64>",
        ),
        {0: 0},
    ),
    "tail: windowed sum, a cumulative sum": row(
        lines(
            ["3x4xf64"],
            total("%0", "3x4", 1, "sum"),
            '%r = "stablehlo.reduce_window"(%sum, %sumz) <{window_dimensions = array<i64: 4>, '
            f"padding = dense<[[3, 0]]> : tensor<1x2xi64>}}> ({adds('f64')}) : "
            "(tensor<4xf64>, tensor<f64>) -> tensor<4xf64>",
        ),
        {0: 0},
    ),
    "tail: reduce over features": row(
        lines(["3x4xf64"], total("%0", "3x4", 1, "sum"), total("%sum", "4", 1, "r")), {0: 0}
    ),
    "tail: Fourier transform, complex parts": row(
        lines(
            ["3x4xf64", "3xf64"],
            total("%0", "3x4", 1, "sum"),
            "%f = stablehlo.fft %sum, type = RFFT, length = [4] : (tensor<4xf64>) -> "
            "tensor<3xcomplex<f64>>",
            "%i = stablehlo.imag %f : (tensor<3xcomplex<f64>>) -> tensor<3xf64>",
            "%c = stablehlo.complex %i, %1 : tensor<3xcomplex<f64>>",
            "%r = stablehlo.real %c : (tensor<3xcomplex<f64>>) -> tensor<3xf64>",
        ),
        {0: 0},
    ),
    "tail: triangular_solve with a shared matrix": row(
        lines(
            ["3x2x1xf64", "2x2xf64"],
            total("%0", "3x2x1", 1, "sum"),
            solve("f64", "2x2x", "2x1x")[1].replace("%1", "%sum").replace("%0", "%1"),
        ),
        {0: 0},
    ),
    "tail: convolution with a shared kernel": row(
        lines(
            ["3x5xf64", "2xf64"],
            total("%0", "3x5", 1, "sum"),
            "%x = stablehlo.reshape %sum : (tensor<5xf64>) -> tensor<1x5x1xf64>",
            "%k = stablehlo.reshape %1 : (tensor<2xf64>) -> tensor<2x1x1xf64>",
            "%r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], "
            "window = {} "
            "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
            "(tensor<1x5x1xf64>, tensor<2x1x1xf64>) -> tensor<1x4x1xf64>",
        ),
        {0: 0},
    ),
    "tail: dynamic slices at a shared place": row(
        lines(
            ["3x4xf64", "6xf64", "i32"],
            total("%0", "3x4", 1, "sum"),
            "%u = stablehlo.dynamic_update_slice %1, %sum, %2 : "
            "(tensor<6xf64>, tensor<4xf64>, tensor<i32>) -> tensor<6xf64>",
            "%r = stablehlo.dynamic_slice %u, %2, sizes = [2] : (tensor<6xf64>, tensor<i32>) -> "
            "tensor<2xf64>",
        ),
        {0: 0},
    ),
    "tail: gather and scatter at shared places": row(
        lines(
            ["3x4xf64", "5x1xi32", "6xf64"],
            total("%0", "3x4", 1, "sum"),
            '%g = "stablehlo.gather"(%sum, %1) <{dimension_numbers = '
            "#stablehlo.gather<collapsed_slice_dims = [0], "
            "start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1>}> : "
            "(tensor<4xf64>, tensor<5x1xi32>) -> tensor<5xf64>",
            '%r = "stablehlo.scatter"(%2, %1, %g) <{scatter_dimension_numbers = #stablehlo.scatter<'
            "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = "
            "1>}> "
            f"({adds('f64')}) : (tensor<6xf64>, tensor<5x1xi32>, tensor<5xf64>) -> tensor<6xf64>",
        ),
        {0: 0},
    ),
    "tail: scatter of examples onto a sum": row(
        lines(
            ["3x4xf64", "3x1xi32", "3xf64"],
            total("%0", "3x4", 1, "sum"),
            '%r = "stablehlo.scatter"(%sum, %1, %2) <{scatter_dimension_numbers = '
            "#stablehlo.scatter<"
            "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = "
            "1>}> "
            f"({adds('f64')}) : (tensor<4xf64>, tensor<3x1xi32>, tensor<3xf64>) -> tensor<4xf64>",
        ),
        {0: 0, 1: 0, 2: 0},
    ),
    "tail: one result of a barrier": row(
        lines(
            ["3x4xf64", "4xf64"],
            total("%0", "3x4", 1, "sum"),
            "%m = stablehlo.multiply %sum, %sum : tensor<4xf64>",
            "%a, %b, %r = stablehlo.optimization_barrier %1, %m, %sum : tensor<4xf64>, "
            "tensor<4xf64>, tensor<4xf64>",
        ),
        {0: 0},
    ),
}

SHARED = {
    "iota": row(lines(["3xf64"], counting("r", "3xi32")), {0: 0}),
    "a weight of the examples' size": row(
        lines(["3xf64", "3xf64"], "%r = stablehlo.tanh %1 : tensor<3xf64>"), {0: 0}
    ),
    "random bits": row(
        lines(
            ["3x4xf64", "2xui64"],
            "%sum, %r = stablehlo.rng_bit_generator %1, algorithm = THREE_FRY : "
            "(tensor<2xui64>) -> (tensor<2xui64>, tensor<3x4xui64>)",
        ),
        {0: 0},
    ),
    "the other operand of a barrier": row(
        lines(
            ["3x4xf64", "4xf64"],
            "%m, %r = stablehlo.optimization_barrier %0, %1 : tensor<3x4xf64>, tensor<4xf64>",
        ),
        {0: 0},
    ),
}

SUM_OF_FOUR = total("%0", "3x4", 1, "sum")
SCALAR_SUM = total("%0", "3", 1, "sum")
TO_SCALAR_INTEGER = "%i = stablehlo.convert %sum : (tensor<f64>) -> tensor<i32>"


def on_sum(*ops, others=()):
    """Ops on %sum, the sum over examples of %0, four features."""
    return row(lines(["3x4xf64", *others], SUM_OF_FOUR, *ops), {0: 0})


def on_scalar_sum(*ops, others=()):
    """Ops on %sum, the sum over examples of %0, one feature."""
    return row(lines(["3xf64", *others], SCALAR_SUM, *ops), {0: 0})


def reduced_sum(operation, initial):
    return on_sum(
        f"%z = stablehlo.constant dense<{initial}> : tensor<f64>",
        f"%r = stablehlo.reduce(%sum init: %z) applies stablehlo.{operation} across dimensions = "
        "[0] : "
        "(tensor<4xf64>, tensor<f64>) -> tensor<f64>",
    )


def scattered_sum(operation):
    return on_sum(
        '%r = "stablehlo.scatter"(%1, %2, %sum) <{scatter_dimension_numbers = #stablehlo.scatter<'
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> "
        f"({adds('f64', operation)}) : (tensor<2xf64>, tensor<4x1xi32>, tensor<4xf64>) -> "
        "tensor<2xf64>",
        others=["2xf64", "4x1xi32"],
    )


TRAPS = {
    "1 rows that slide along as many rows": row(
        convolution(
            "1x4x1xf64",
            "4x1x1xf64",
            "1x3x1xf64",
            "[b, 0, f]x[0, i, o]->[b, 0, f]",
            "pad = [[1, 1]]",
        ),
        {0: 1, 1: 0},
    ),
    "1 sums multiplied by dot_general": on_sum(
        "%r = stablehlo.dot_general %sum, %sum, contracting_dims = [0] x [0] : "
        "(tensor<4xf64>, tensor<4xf64>) -> tensor<f64>",
    ),
    "1 sums multiplied": on_sum("%r = stablehlo.multiply %sum, %sum : tensor<4xf64>"),
    "1 sums convolved": on_sum(
        "%x = stablehlo.reshape %sum : (tensor<4xf64>) -> tensor<1x4x1xf64>",
        "%k = stablehlo.reshape %sum : (tensor<4xf64>) -> tensor<4x1x1xf64>",
        "%r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window "
        "= {} "
        "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        "(tensor<1x4x1xf64>, tensor<4x1x1xf64>) -> tensor<1x1x1xf64>",
    ),
    "1 a step of Newton and Schulz": on_sum(
        "%m = stablehlo.reshape %sum : (tensor<4xf64>) -> tensor<2x2xf64>",
        "%t = stablehlo.dot_general %m, %m, contracting_dims = [1] x [1] : "
        "(tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>",
        "%r = stablehlo.dot_general %t, %m, contracting_dims = [1] x [0] : "
        "(tensor<2x2xf64>, tensor<2x2xf64>) -> tensor<2x2xf64>",
    ),
    "1 a sum times the examples": on_sum(
        "%b = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<4xf64>) -> tensor<3x4xf64>",
        "%m = stablehlo.multiply %b, %0 : tensor<3x4xf64>",
        total("%m", "3x4", 1),
    ),
    "1 a sum contracted with the examples": on_sum(
        "%r = stablehlo.dot_general %0, %sum, contracting_dims = [1] x [0] : "
        "(tensor<3x4xf64>, tensor<4xf64>) -> tensor<3xf64>",
    ),
    "2 a sum as the index of dynamic_slice": on_scalar_sum(
        TO_SCALAR_INTEGER,
        "%r = stablehlo.dynamic_slice %1, %i, sizes = [1] : (tensor<8xf64>, tensor<i32>) -> "
        "tensor<1xf64>",
        others=["8xf64"],
    ),
    "2 a sum as the index of dynamic_update_slice": on_scalar_sum(
        TO_SCALAR_INTEGER,
        "%r = stablehlo.dynamic_update_slice %1, %2, %i : (tensor<8xf64>, tensor<2xf64>, "
        "tensor<i32>) -> tensor<8xf64>",
        others=["8xf64", "2xf64"],
    ),
    "2 a sum as the index of gather": on_scalar_sum(
        TO_SCALAR_INTEGER,
        "%v = stablehlo.reshape %i : (tensor<i32>) -> tensor<1xi32>",
        '%r = "stablehlo.gather"(%1, %v) <{dimension_numbers = '
        "#stablehlo.gather<collapsed_slice_dims = [0], "
        "start_index_map = [0], index_vector_dim = 0>, slice_sizes = array<i64: 1>}> : "
        "(tensor<8xf64>, tensor<1xi32>) -> tensor<f64>",
        others=["8xf64"],
    ),
    "2 a sum as a predicate": on_sum(
        "%p = stablehlo.compare GT, %sum, %1 : (tensor<4xf64>, tensor<4xf64>) -> tensor<4xi1>",
        "%r = stablehlo.select %p, %1, %2 : tensor<4xi1>, tensor<4xf64>",
        others=["4xf64", "4xf64"],
    ),
    "2 a sum as a divisor": on_sum(
        "%r = stablehlo.divide %1, %sum : tensor<4xf64>", others=["4xf64"]
    ),
    "2 a sum as the matrix of a solve": on_sum(
        "%m = stablehlo.reshape %sum : (tensor<4xf64>) -> tensor<2x2xf64>",
        solve("f64", "2x2x", "2x1x")[1].replace("%0", "%m"),
        others=["2x1xf64"],
    ),
    "3 reduce max on a sum": reduced_sum("maximum", "0xFFF0000000000000"),
    "3 reduce multiply on a sum": reduced_sum("multiply", "1.0"),
    "3 scatter max of a sum": scattered_sum("maximum"),
    "3 scatter multiply of a sum": scattered_sum("multiply"),
    "3 reduce max over examples": row(
        reduce("3x4xf64", "f64", "4xf64", [0], adds("f64", "maximum")), {0: 0}
    ),
    "3 reduce of examples with sums crossed, then multiplied": row(
        (
            ["3xf64", "3xf64", "f64"],
            TWO_REDUCED.format(
                "%sum = stablehlo.add %a, %d : tensor<f64>\n%q = stablehlo.multiply %b, %c : "
                "tensor<f64>\n"
                "%u = stablehlo.add %q, %d : "
                "tensor<f64>"
            ),
        ),
        {0: 0, 1: 0},
    ),
    "3 windowed maximum of a sum": on_sum(
        '%r = "stablehlo.reduce_window"(%sum, %sumz) <{window_dimensions = array<i64: 2>}> '
        f"({adds('f64', 'maximum')}) : (tensor<4xf64>, tensor<f64>) -> tensor<3xf64>",
    ),
    "4 a sum of integers divided": row(
        lines(
            ["3xf64"],
            "%c = stablehlo.convert %0 : (tensor<3xf64>) -> tensor<3xi32>",
            "%z = stablehlo.constant dense<0> : tensor<i32>",
            "%two = stablehlo.constant dense<2> : tensor<i32>",
            "%sum = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [0] : "
            "(tensor<3xi32>, tensor<i32>) -> tensor<i32>",
            "%d = stablehlo.divide %sum, %two : tensor<i32>",
            "%r = stablehlo.convert %d : (tensor<i32>) -> tensor<f64>",
        ),
        {0: 0},
    ),
    "4 a sum of bytes that wraps": row(
        lines(
            ["3xf64"],
            "%h = stablehlo.constant dense<100.0> : tensor<3xf64>",
            "%m = stablehlo.multiply %0, %0 : tensor<3xf64>",
            "%e = stablehlo.tanh %m : tensor<3xf64>",
            "%x = stablehlo.multiply %e, %h : tensor<3xf64>",
            "%c = stablehlo.convert %x : (tensor<3xf64>) -> tensor<3xui8>",
            "%z = stablehlo.constant dense<0> : tensor<ui8>",
            "%sum = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [0] : "
            "(tensor<3xui8>, tensor<ui8>) -> tensor<ui8>",
            "%r = stablehlo.convert %sum : (tensor<ui8>) -> tensor<f64>",
        ),
        {0: 0},
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
    "5 a sum converted to integers": on_sum(
        "%i = stablehlo.convert %sum : (tensor<4xf64>) -> tensor<4xi32>",
        "%r = stablehlo.convert %i : (tensor<4xi32>) -> tensor<4xf64>",
    ),
    "8 a reshape that regroups": row(
        lines(
            ["3x2x3xf64"],
            "%g = stablehlo.reshape %0 : (tensor<3x2x3xf64>) -> tensor<9x2xf64>",
            "%z = stablehlo.constant dense<1.0> : tensor<f64>",
            "%r = stablehlo.reduce(%g init: %z) applies stablehlo.multiply across dimensions = "
            "[1] : "
            "(tensor<9x2xf64>, tensor<f64>) -> tensor<9xf64>",
        ),
        {0: 2},
    ),
    "examples reversed": row(
        lines(
            ["3x4xf64"],
            "%v = stablehlo.reverse %0, dims = [0] : tensor<3x4xf64>",
            "%r = stablehlo.multiply %0, %v : tensor<3x4xf64>",
        ),
        {0: 0},
    ),
    "examples sorted": row((["3x4xf64"], SORT.format(0)), {0: 0}),
    "a cumulative sum over examples, squared": row(
        lines(
            ["3x4xf64"],
            "%z = stablehlo.constant dense<0.0> : tensor<f64>",
            '%c = "stablehlo.reduce_window"(%0, %z) <{window_dimensions = array<i64: 3, 1>, '
            f"padding = dense<[[2, 0], [0, 0]]> : tensor<2x2xi64>}}> ({adds('f64')}) : "
            "(tensor<3x4xf64>, tensor<f64>) -> tensor<3x4xf64>",
            "%r = stablehlo.multiply %c, %c : tensor<3x4xf64>",
        ),
        {0: 0},
    ),
    "a Fourier transform over examples, squared": row(
        lines(
            ["4x3xf64"],
            "%f = stablehlo.fft %0, type = RFFT, length = [3] : (tensor<4x3xf64>) -> "
            "tensor<4x2xcomplex<f64>>",
            "%r = stablehlo.multiply %f, %f : tensor<4x2xcomplex<f64>>",
        ),
        {0: 1},
    ),
    "a similarity of all pairs": row(
        dot("3x4xf64", "3x4xf64", "3x3xf64", "contracting_dims = [1] x [1]"), {0: 0, 1: 0}
    ),
    "a row of the table of examples for all": row(
        lines(
            ["3x4xf64", "3x1xi32", "3x4xf64"],
            '%g = "stablehlo.gather"(%0, %1) <{dimension_numbers = #stablehlo.gather<offset_dims '
            "= [1], "
            "collapsed_slice_dims = [0], "
            "start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : "
            "(tensor<3x4xf64>, tensor<3x1xi32>) -> tensor<3x4xf64>",
            "%r = stablehlo.multiply %g, %2 : tensor<3x4xf64>",
        ),
        {0: 0, 1: 0, 2: 0},
    ),
    "an index past the examples' own number": row(
        lines(
            ["3x4xf64", "3xi32"],
            "%m = stablehlo.iota dim = 0 : tensor<3x1xi32>",
            "%one = stablehlo.constant dense<1> : tensor<3x1xi32>",
            "%n = stablehlo.add %m, %one : tensor<3x1xi32>",
            *OWN_LABELS[1:],
            *ON_OWN_GATHER,
        ),
        {0: 0, 1: 0},
    ),
    "3 reduce whose body adds a product": on_sum(
        "%one = stablehlo.constant dense<1.0> : tensor<f64>",
        '%r = "stablehlo.reduce"(%sum, %one) <{dimensions = array<i64: 0>}> ({ '
        "^bb0(%a: tensor<f64>, %b: tensor<f64>):\n"
        "%p = stablehlo.multiply %a, %b : tensor<f64>\n%s = stablehlo.add %a, %p : tensor<f64>\n"
        "stablehlo.return %s : tensor<f64> }) : (tensor<4xf64>, tensor<f64>) -> tensor<f64>",
    ),
    "3 reduce of sums, one result of which is a product": on_sum(
        TWO_REDUCED.format(
            "%s = stablehlo.add %a, %c : tensor<f64>\n%u = stablehlo.multiply %b, %d : tensor<f64>"
        )
        .replace("return %sum", "return %s")
        .replace("tensor<3xf64>", "tensor<4xf64>")
        .replace("(%0, %1, %2, %2)", "(%sum, %sum, %1, %1)"),
        others=["f64"],
    ),
    "the absolute value of a sum": on_sum("%r = stablehlo.abs %sum : tensor<4xf64>"),
    "a sum sorted": on_sum(
        SORT.format(0).replace("%0", "%sum").replace("3x4x", "4x"),
    ),
    "every other row of two views": row(
        lines(
            ["3x4xf64", "3x4xf64"],
            TWO_VIEWS,
            "%e = stablehlo.slice %v [0:6:2, 0:4] : (tensor<6x4xf64>) -> tensor<3x4xf64>",
            "%s = stablehlo.slice %e [0:3, 0:4] : (tensor<3x4xf64>) -> tensor<3x4xf64>",
            "%r = stablehlo.multiply %s, %0 : tensor<3x4xf64>",
        ),
        {0: 0, 1: 0},
    ),
    "examples with padding between them": row(
        lines(
            ["3x4xf64", "f64"],
            "%p = stablehlo.pad %0, %1, low = [0, 0], high = [0, 0], interior = [1, 0] : "
            "(tensor<3x4xf64>, tensor<f64>) -> tensor<5x4xf64>",
            "%s = stablehlo.slice %p [0:3, 0:4] : (tensor<5x4xf64>) -> tensor<3x4xf64>",
            "%r = stablehlo.multiply %s, %0 : tensor<3x4xf64>",
        ),
        {0: 0},
    ),
    "views behind rows side by side": row(
        lines(
            ["3x4xf64", "3x4xf64", "3x2x4xf64"],
            TWO_VIEWS,
            "%p = stablehlo.reshape %2 : (tensor<3x2x4xf64>) -> tensor<6x4xf64>",
            "%c = stablehlo.concatenate %p, %v, dim = 0 : (tensor<6x4xf64>, tensor<6x4xf64>) -> "
            "tensor<12x4xf64>",
            "%s = stablehlo.slice %c [6:12, 0:4] : (tensor<12x4xf64>) -> tensor<6x4xf64>",
            "%r = stablehlo.multiply %s, %p : tensor<6x4xf64>",
        ),
        {0: 0, 1: 0, 2: 0},
    ),
    "an index that is the own number for some": row(
        lines(
            ["3x4xf64", "3xi32"],
            "%n = stablehlo.constant dense<[[0], [1], [1]]> : tensor<3x1xi32>",
            *OWN_LABELS[1:],
            *ON_OWN_GATHER,
        ),
        {0: 0, 1: 0},
    ),
    "an own number counted along another dimension": row(
        lines(
            ["3x3xf64", "3x3xi32"],
            "%n = stablehlo.iota dim = 1 : tensor<3x3x1xi32>",
            "%c = stablehlo.reshape %1 : (tensor<3x3xi32>) -> tensor<3x3x1xi32>",
            "%i = stablehlo.concatenate %n, %c, dim = 2 : (tensor<3x3x1xi32>, tensor<3x3x1xi32>) "
            "-> tensor<3x3x2xi32>",
            '%r = "stablehlo.gather"(%0, %i) <{dimension_numbers = '
            "#stablehlo.gather<collapsed_slice_dims = [0, 1], "
            "start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : "
            "(tensor<3x3xf64>, tensor<3x3x2xi32>) -> tensor<3x3xf64>",
        ),
        {0: 0, 1: 0},
    ),
    "own numbers along the features": row(
        lines(
            ["3x3xf64", "3xi32"],
            *OWN_LABELS,
            OWN_GATHER.replace("3x4x", "3x3x"),
        ),
        {0: 1, 1: 0},
    ),
    "several examples from each one's own number on": row(
        lines(
            ["3x4xf64"],
            OWN_LABELS[0],
            '%g = "stablehlo.gather"(%0, %n) <{dimension_numbers = #stablehlo.gather<offset_dims '
            "= [1, 2], "
            "start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 2, 4>}> : "
            "(tensor<3x4xf64>, tensor<3x1xi32>) -> tensor<3x2x4xf64>",
            "%r = stablehlo.multiply %g, %g : tensor<3x2x4xf64>",
            "%b = stablehlo.broadcast_in_dim %0, dims = [0, 2] : (tensor<3x4xf64>) -> "
            "tensor<3x2x4xf64>",
            "%h = stablehlo.multiply %r, %b : tensor<3x2x4xf64>",
        ),
        {0: 0},
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
        "%r = stablehlo.custom_call @lapack_dtrsm_ffi(%0, %1) {mhlo.backend_config = {side = 82 : "
        "ui8}} : "
        f"(tensor<{shape}xf64>, tensor<{shape}xf64>) -> tensor<{shape}xf64>"
    )


# Mixed, though no execution can tell: XLA does not run such bodies and calls, or the examples are
# added up otherwise.
UNTOLD = {
    "a body that captures an example's value": row(
        lines(
            ["3x4xf64", "3x4xf64"],
            "%d = stablehlo.negate %1 : tensor<3x4xf64>",
            *captured(
                "%t = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, "
                "1] : "
                "(tensor<3x4xf64>, tensor<f64>) -> tensor<f64>"
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
    "a solve with matrices along one dimension and sides along another": row(
        lines(["3x3x3xf64", "3x3x3xf64"], solved("3x3x3")), {0: 0, 1: 1}
    ),
    "a solve with a matrix whose rows are the examples'": row(
        lines(["3x3xf64", "3x3xf64"], solved("3x3")), {0: 0, 1: 0}
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
