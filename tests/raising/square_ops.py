"""StableHLO ops on arrays whose sizes are all 4: every dimension could be taken for any other.

`$x`, `$y`: 4x4xf64, `$z`: 4xf64, `$i`: 4xi32, `$n`: a scalar index, `$zero`: f64. A line makes one
value.
"""

import re

SQUARE, LINE = "tensor<4x4xf64>", "tensor<4xf64>"
PAIR = "({ ^bb0(%a: tensor<f64>, %b: tensor<f64>):\n"
ADD = f"{PAIR} %s = stablehlo.add %a, %b : tensor<f64>\n stablehlo.return %s : tensor<f64> }})"
TAKE = f"{PAIR} stablehlo.return %b : tensor<f64> }})"
LESS = (
    f"{PAIR} %c = stablehlo.compare LT, %a, %b : (tensor<f64>, tensor<f64>) -> tensor<i1>\n"
    " stablehlo.return %c : tensor<i1> })"
)


def unary(name, attributes=""):
    return f"stablehlo.{name} $x{attributes} : ({SQUARE}) -> {SQUARE}"


def padded(low, high, interior):
    how = f"low = {low}, high = {high}, interior = {interior}"
    return f"stablehlo.pad $x, $zero, {how} : ({SQUARE}, tensor<f64>) -> {SQUARE}"


def dot(attributes, result=SQUARE):
    return f"stablehlo.dot_general $x, $y, {attributes} : ({SQUARE}, {SQUARE}) -> {result}"


def windowed(window, padding, region=ADD, more=""):
    attributes = (
        f"window_dimensions = array<i64: {window}>, padding = dense<{padding}> : "
        f"tensor<2x2xi64>{more}"
    )
    return (
        f'"stablehlo.reduce_window"($x, $zero) <{{{attributes}}}> {region} : ({SQUARE}, '
        f"tensor<f64>) -> {SQUARE}"
    )


def gathered(
    numbers, sizes, operand="$x", kind=SQUARE, result=SQUARE, index="$i", index_kind="tensor<4xi32>"
):
    attributes = (
        f"dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>"
    )
    return (
        f'"stablehlo.gather"({operand}, {index}) <{{{attributes}}}> : ({kind}, {index_kind}) '
        f"-> {result}"
    )


def scattered(numbers, region, updates="$y", kind=SQUARE, index="$i", index_kind="tensor<4xi32>"):
    attributes = f"<{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}}>"
    types = f"({SQUARE}, {index_kind}, {kind}) -> {SQUARE}"
    return f'"stablehlo.scatter"($x, {index}, {updates}) {attributes} {region} : {types}'


def sorted_along(dimension):
    return (
        f'"stablehlo.sort"($x) <{{dimension = {dimension} : i64}}> {LESS} : ({SQUARE}) -> {SQUARE}'
    )


def written(update, kind, *starts):
    types = f"({SQUARE}, {kind}, tensor<i32>, tensor<i32>) -> {SQUARE}"
    return f"stablehlo.dynamic_update_slice $x, {update}, {', '.join(starts)} : {types}"


def reduced(dimension, region=ADD):
    how = f"<{{dimensions = array<i64: {dimension}>}}>"
    return f'"stablehlo.reduce"($x, $zero) {how} {region} : ({SQUARE}, tensor<f64>) -> {LINE}'


def convolved(numbers, window, groups=(1, 1), lhs="4x4x1xf64", rhs="4x1x1xf64", result="4x4x1xf64"):
    how = (
        f"window = {{{window}}} {{feature_group_count = {groups[0]} : i64, batch_group_count = "
        f"{groups[1]} : i64}}"
    )
    return (
        f"stablehlo.reshape $x : ({SQUARE}) -> tensor<{lhs}>",
        f"stablehlo.slice $y [0:4, 0:1] : ({SQUARE}) -> tensor<4x1xf64>",
        f"stablehlo.reshape $1 : (tensor<4x1xf64>) -> tensor<{rhs}>",
        f"stablehlo.convolution($0, $2) dim_numbers = {numbers}, {how} : (tensor<{lhs}>, "
        f"tensor<{rhs}>) -> "
        f"tensor<{result}>",
    )


ROWS = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
COLUMNS = (
    "offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1"
)
ONTO_ROWS = (
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = "
    "[0], index_vector_dim = 1"
)
ONTO_COLUMNS = (
    "update_window_dims = [0], inserted_window_dims = [1], "
    "scatter_dims_to_operand_dims = [1], index_vector_dim = 1"
)

OPS = {
    "tanh": (unary("tanh"),),
    "multiply": (f"stablehlo.multiply $x, $y : {SQUARE}",),
    "reverse rows": (f"stablehlo.reverse $x, dims = [0] : {SQUARE}",),
    "reverse columns": (f"stablehlo.reverse $x, dims = [1] : {SQUARE}",),
    "transpose": (unary("transpose", ", dims = [1, 0]"),),
    "reshape": (
        f"stablehlo.reshape $x : ({SQUARE}) -> tensor<16xf64>",
        f"stablehlo.reshape $0 : (tensor<16xf64>) -> {SQUARE}",
    ),
    **{
        f"pad {low} {high} {interior}": (padded(low, high, interior),)
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
    "slice": (f"stablehlo.slice $x [0:4, 0:4:1] : ({SQUARE}) -> {SQUARE}",),
    "roll": (
        f"stablehlo.slice $x [1:4, 0:4] : ({SQUARE}) -> tensor<3x4xf64>",
        f"stablehlo.slice $x [0:1, 0:4] : ({SQUARE}) -> tensor<1x4xf64>",
        f"stablehlo.concatenate $0, $1, dim = 0 : (tensor<3x4xf64>, tensor<1x4xf64>) -> {SQUARE}",
    ),
    "halves": (
        f"stablehlo.slice $x [0:4:2, 0:4] : ({SQUARE}) -> tensor<2x4xf64>",
        f"stablehlo.slice $y [1:4:2, 0:4] : ({SQUARE}) -> tensor<2x4xf64>",
        f"stablehlo.concatenate $0, $1, dim = 0 : (tensor<2x4xf64>, tensor<2x4xf64>) -> {SQUARE}",
    ),
    "dynamic_slice": (
        f"stablehlo.dynamic_slice $x, $n, $n, sizes = [4, 4] : ({SQUARE}, tensor<i32>, "
        f"tensor<i32>) -> {SQUARE}",
    ),
    "dynamic_slice of columns": (
        f"stablehlo.dynamic_slice $x, $n, $n, sizes = [4, 1] : ({SQUARE}, tensor<i32>, "
        "tensor<i32>) -> tensor<4x1xf64>",
    ),
    "dynamic_update_slice": (written("$y", SQUARE, "$n", "$n"),),
    "dynamic_update_slice of one row": (
        f"stablehlo.reshape $z : ({LINE}) -> tensor<1x4xf64>",
        written("$0", "tensor<1x4xf64>", "$n", "$n"),
    ),
    "dynamic_update_slice of one column": (
        f"stablehlo.reshape $z : ({LINE}) -> tensor<4x1xf64>",
        written("$0", "tensor<4x1xf64>", "$n", "$n"),
    ),
    "gather rows": (gathered(ROWS, "1, 4"),),
    "gather columns": (gathered(COLUMNS, "4, 1"),),
    "gather a window of rows": (
        "stablehlo.reshape $n : (tensor<i32>) -> tensor<1xi32>",
        gathered(
            "offset_dims = [0, 1], start_index_map = [0], index_vector_dim = 0",
            "4, 4",
            index="$0",
            index_kind="tensor<1xi32>",
        ),
    ),
    "gather row by row": (
        gathered(
            "collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims "
            "= [0], "
            "start_index_map = [1], index_vector_dim = 1",
            "1, 1",
            result=LINE,
        ),
    ),
    "scatter onto rows": (scattered(ONTO_ROWS, ADD),),
    "scatter over rows": (scattered(ONTO_ROWS, TAKE),),
    "scatter onto columns": (scattered(ONTO_COLUMNS, ADD),),
    "scatter row by row": (
        scattered(
            "inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims "
            "= [0], "
            "scatter_dims_to_operand_dims = [1], index_vector_dim = 1",
            ADD,
            updates="$z",
            kind=LINE,
        ),
    ),
    "scatter a window of columns": (
        "stablehlo.reshape $n : (tensor<i32>) -> tensor<1xi32>",
        scattered(
            "update_window_dims = [0, 1], scatter_dims_to_operand_dims = [0], index_vector_dim = 0",
            ADD,
            index="$0",
            index_kind="tensor<1xi32>",
        ),
    ),
    "sort rows": (sorted_along(0),),
    "sort columns": (sorted_along(1),),
    "sum of rows": (reduced(0),),
    "sum of columns": (reduced(1),),
    "last of rows": (reduced(0, TAKE),),
    "window of neighbours": (windowed("2, 1", "[[1, 0], [0, 0]]"),),
    "window before": (windowed("1, 1", "[[1, -1], [0, 0]]"),),
    "window of dilated rows": (
        windowed("1, 1", "[[-1, -2], [0, 0]]", more=", base_dilations = array<i64: 2, 1>"),
    ),
    "window of strided rows": (
        windowed("1, 1", "[[2, 1], [0, 0]]", more=", window_strides = array<i64: 2, 1>"),
    ),
    "window of ones": (windowed("1, 1", "[[0, 0], [0, 0]]"),),
    "cumulated columns": (windowed("1, 4", "[[0, 0], [3, 0]]"),),
    "matrix product": (dot("contracting_dims = [1] x [0]"),),
    "product of columns": (dot("contracting_dims = [0] x [0]"),),
    "rows with rows": (dot("batching_dims = [0] x [0], contracting_dims = [1] x [1]", LINE),),
    "rows with columns": (dot("batching_dims = [0] x [1], contracting_dims = [1] x [0]", LINE),),
    "inner product": (dot("contracting_dims = [0, 1] x [0, 1]", "tensor<f64>"),),
    "convolution along columns": convolved("[b, 0, f]x[0, i, o]->[b, 0, f]", "pad = [[2, 1]]"),
    "convolution along rows": convolved("[0, b, f]x[0, i, o]->[0, b, f]", "pad = [[2, 1]]"),
    "convolution of moved rows": convolved(
        "[0, b, f]x[0, i, o]->[0, b, f]",
        "pad = [[1, 2]], lhs_dilate = [1], rhs_dilate = [1], reverse = [true]",
    ),
    "convolution in feature groups": convolved(
        "[b, 0, f]x[o, 0, i]->[b, 0, f]",
        "pad = [[0, 0]]",
        (4, 1),
        "4x1x4xf64",
        "4x1x1xf64",
        "4x1x4xf64",
    ),
    "convolution in batch groups": convolved(
        "[b, f, 0]x[o, i, 0]->[b, f, 0]",
        "pad = [[0, 0]]",
        (1, 4),
        "4x1x4xf64",
        "4x1x1xf64",
        "1x4x4xf64",
    ),
    "fft of columns": (
        f"stablehlo.fft $x, type = RFFT, length = [4] : ({SQUARE}) -> tensor<4x3xcomplex<f64>>",
        "stablehlo.real $0 : (tensor<4x3xcomplex<f64>>) -> tensor<4x3xf64>",
    ),
    "fft of both": (
        f"stablehlo.fft $x, type = RFFT, length = [4, 4] : ({SQUARE}) -> tensor<4x3xcomplex<f64>>",
        "stablehlo.real $0 : (tensor<4x3xcomplex<f64>>) -> tensor<4x3xf64>",
    ),
    "solve from the left": (
        '"stablehlo.triangular_solve"($x, $y) <{left_side = true, lower = true, unit_diagonal = '
        "true, "
        f"transpose_a = #stablehlo<transpose NO_TRANSPOSE>}}> : ({SQUARE}, {SQUARE}) -> {SQUARE}",
    ),
    "solve from the right": (
        '"stablehlo.triangular_solve"($x, $y) <{left_side = false, lower = true, unit_diagonal = '
        "true, "
        f"transpose_a = #stablehlo<transpose NO_TRANSPOSE>}}> : ({SQUARE}, {SQUARE}) -> {SQUARE}",
    ),
    "cholesky": (f"stablehlo.cholesky $x, lower = true : {SQUARE}",),
    "batch_norm_inference": (
        '"stablehlo.batch_norm_inference"($x, $z, $z, $z, $z) <{epsilon = 1.0e1 : f32, '
        "feature_index = 1 : i64}> : "
        f"({SQUARE}, {LINE}, {LINE}, {LINE}, {LINE}) -> {SQUARE}",
    ),
    "select_and_scatter": (
        '"stablehlo.select_and_scatter"($x, $y, $zero) <{window_dimensions = array<i64: 2, 1>, '
        f"padding = dense<[[1, 0], [0, 0]]> : tensor<2x2xi64>}}> {LESS.replace('LT', 'GE')[:-1]}, "
        f"{ADD[1:]} : "
        f"({SQUARE}, {SQUARE}, tensor<f64>) -> {SQUARE}",
    ),
    "reduce_precision": (f"stablehlo.reduce_precision $x, format = e5m10 : {SQUARE}",),
    "bitcast_convert": (
        f"stablehlo.bitcast_convert $x : ({SQUARE}) -> tensor<4x4x2xi32>",
        f"stablehlo.bitcast_convert $0 : (tensor<4x4x2xi32>) -> {SQUARE}",
    ),
    "clamp": (f"stablehlo.clamp $y, $x, $y : {SQUARE}",),
    "optimization_barrier": (f"stablehlo.optimization_barrier $x : {SQUARE}",),
    "top_k": (f"chlo.top_k($x, k = 4) : {SQUARE} -> ({SQUARE}, tensor<4x4xi32>)",),
    "broadcast": (f"stablehlo.broadcast_in_dim $z, dims = [1] : ({LINE}) -> {SQUARE}",),
    "map": (
        f'"stablehlo.map"($x, $y) <{{dimensions = array<i64: 0, 1>}}> {ADD} : ({SQUARE}, '
        f"{SQUARE}) -> {SQUARE}",
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
    """The op's lines. `operands`: the values that they take; `prefix`: of those that they make."""
    ops = OPS[name]
    names = (
        {str(k): f"%r{prefix}{k}" for k in range(len(ops))}
        | {"n": "%n", "zero": "%zero"}
        | operands
    )
    return [f"{names[str(k)]}{_more(op)} = {_filled(op, names)}" for k, op in enumerate(ops)]


def _more(op):
    """An op with two results says so."""
    return ":2" if "top_k" in op else ""


def _filled(op, names):
    return re.sub(r"\$(\w+)", lambda token: names[token[1]], op)
