"""StableHLO ops written by hand, one each: operand types and the op as text on %0, %1..."""


def typed(types, result, name, attributes=""):
    """An op in its short form: `name %0, %1, attributes : (types) -> result`."""
    operands = ", ".join(f"%{i}" for i in range(len(types)))
    return types, f"%r = {name} {operands}{attributes} : {signature(types, result)}"


def generic(types, results, name, attributes, region="", count=1):
    """An op in MLIR's generic form, which all attributes and regions have."""
    operands = ", ".join(f"%{i}" for i in range(len(types)))
    regions = f"({region})" if region else ""
    return (
        types,
        f'%r:{count} = "{name}"({operands}) <{{{attributes}}}> {regions} : '
        f"{signature(types, results)}",
    )


def signature(types, result):
    return (
        f"({', '.join(f'tensor<{t}>' for t in types)}) -> "
        f"{result if result[0] == '(' else f'tensor<{result}>'}"
    )


def elementwise(name, kind, count):
    return [
        kind
    ] * count, f"%r = stablehlo.{name} {', '.join(f'%{i}' for i in range(count))} : tensor<{kind}>"


def scalar_body(kind, *lines, returned):
    """A reducer's region over two scalars: %a accumulated, %b new."""
    ops = "\n".join(lines)
    return (
        f"{{ ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>):\n {ops}\n stablehlo.return "
        f"%{returned} : tensor<{kind}> }}"
    )


def adds(kind, op="add"):
    return scalar_body(kind, f"%s = stablehlo.{op} %a, %b : tensor<{kind}>", returned="s")


def overwrites(kind):
    return scalar_body(kind, returned="b")


def pair_body(*lines, returned):
    """A reducer's region over two pairs of scalars: %a, %b accumulated, %c, %d new."""
    arguments = ", ".join(f"%{name}: tensor<f32>" for name in "abcd")
    ops = "\n".join(lines)
    return (
        f"{{ ^bb0({arguments}):\n {ops}\n stablehlo.return {returned} : tensor<f32>, tensor<f32> }}"
    )


def sum_pair(first, second):
    sums = f"%s = stablehlo.add {first} : tensor<f32>", f"%t = stablehlo.add {second} : tensor<f32>"
    return pair_body(*sums, returned="%s, %t")


def i64s(**arrays):
    return ", ".join(
        f"{name} = array<i64: {str(list(values))[1:-1]}>" for name, values in arrays.items()
    )


def dot(lhs, rhs, result, attributes):
    return typed([lhs, rhs], result, "stablehlo.dot_general", ", " + attributes)


def reduce(operand, element, result, dimensions, region=None):
    attributes = i64s(dimensions=dimensions)
    return generic(
        [operand, element], result, "stablehlo.reduce", attributes, region or adds(element)
    )


def reduce_pair(region):
    types = ["2x3xf32", "2x3xf32", "f32", "f32"]
    results = "(tensor<2xf32>, tensor<2xf32>)"
    return generic(types, results, "stablehlo.reduce", i64s(dimensions=[1]), region, count=2)


def convolution(lhs, rhs, result, numbers, window="", feature_groups=1, batch_groups=1):
    groups = (
        f"{{batch_group_count = {batch_groups} : i64, feature_group_count = {feature_groups} "
        f": i64}}"
    )
    how = f"dim_numbers = {numbers}, window = {{{window}}} {groups}"
    return [lhs, rhs], f"%r = stablehlo.convolution(%0, %1) {how} : {signature([lhs, rhs], result)}"


def scatter(types, numbers, region, unique="false"):
    attributes = (
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = {unique}"
    )
    return generic(types, types[0], "stablehlo.scatter", attributes, region)


def gather(operand, indices, result, numbers, sizes):
    attributes = f"dimension_numbers = #stablehlo.gather<{numbers}>, {i64s(slice_sizes=sizes)}"
    return generic([operand, indices], result, "stablehlo.gather", attributes)


def solve(kind, a, b, transpose="NO_TRANSPOSE", left="true", lower="true", unit="false"):
    attributes = (
        f"left_side = {left}, lower = {lower}, unit_diagonal = {unit}, transpose_a = "
        f"#stablehlo<transpose {transpose}>"
    )
    return generic([a + kind, b + kind], b + kind, "stablehlo.triangular_solve", attributes)


ELEMENTWISE = {
    **{
        f"{n} {k}": elementwise(n, k, 2)
        for n in ("add", "subtract", "multiply")
        for k in ("3xf32", "2xcomplex<f64>")
    },
    "add bf16": elementwise("add", "2x3xbf16", 2),
    "multiply f64": elementwise("multiply", "3xf64", 2),
    "add ui8 wraps": elementwise("add", "3xui8", 2),
    "divide": elementwise("divide", "3xf32", 2),
    "negate": elementwise("negate", "3xf16", 1),
    **{
        f"convert {a} to {b}": typed([f"3x{a}"], f"3x{b}", "stablehlo.convert")
        for a, b in [
            ("f32", "bf16"),
            ("bf16", "f64"),
            ("f32", "i32"),
            ("i32", "i1"),
            ("i1", "f32"),
            ("f64", "complex<f64>"),
            ("complex<f32>", "f32"),
            ("i64", "f32"),
            ("f32", "f8E4M3FN"),
        ]
    },
    "real": typed(["3xcomplex<f32>"], "3xf32", "stablehlo.real"),
    "real of real": typed(["3xf32"], "3xf32", "stablehlo.real"),
    "imag": typed(["3xcomplex<f64>"], "3xf64", "stablehlo.imag"),
    "imag of real": typed(["3xf32"], "3xf32", "stablehlo.imag"),
    "complex": typed(["3xf32", "3xf32"], "3xcomplex<f32>", "stablehlo.complex"),
    "select": (
        ["3xi1", "3xf32", "3xf32"],
        "%r = stablehlo.select %0, %1, %2 : tensor<3xi1>, tensor<3xf32>",
    ),
    "select by a scalar": (
        ["i1", "3xf32", "3xf32"],
        "%r = stablehlo.select %0, %1, %2 : tensor<i1>, tensor<3xf32>",
    ),
    "reduce_precision": (
        ["3xf32"],
        "%r = stablehlo.reduce_precision %0, format = e5m3 : tensor<3xf32>",
    ),
}

MOVES = {
    "transpose": typed(["2x3x4xf32"], "4x2x3xf32", "stablehlo.transpose", ", dims = [2, 0, 1]"),
    "reshape": typed(["2x3x4xf32"], "4x6xf32", "stablehlo.reshape"),
    "broadcast_in_dim": typed(
        ["3x1xf32"], "2x3x4xf32", "stablehlo.broadcast_in_dim", ", dims = [1, 2]"
    ),
    "broadcast_in_dim permuted": typed(
        ["3x2xf32"], "2x3xf32", "stablehlo.broadcast_in_dim", ", dims = [1, 0]"
    ),
    "pad": typed(
        ["2x3xf32", "f32"],
        "5x6xf32",
        "stablehlo.pad",
        ", low = [1, 0], high = [2, 1], interior = [0, 1]",
    ),
    "pad negative": typed(
        ["5xf32", "f32"], "7xf32", "stablehlo.pad", ", low = [-1], high = [-1], interior = [1]"
    ),
    "concatenate": typed(
        ["2x3xf32", "2x1xf32", "2x2xf32"], "2x6xf32", "stablehlo.concatenate", ", dim = 1"
    ),
    "slice": (
        ["5x6xf32"],
        "%r = stablehlo.slice %0 [1:4, 0:6:2] : (tensor<5x6xf32>) -> tensor<3x3xf32>",
    ),
    "reverse": (["2x3xf32"], "%r = stablehlo.reverse %0, dims = [1] : tensor<2x3xf32>"),
    "optimization_barrier": (
        ["2xf32", "3xi32"],
        "%r:2 = stablehlo.optimization_barrier %0, %1 : tensor<2xf32>, tensor<3xi32>",
    ),
}

CONSTANTS = {
    f"constant {kind} {elements}": (
        [],
        f"%r = stablehlo.constant dense<{elements}> : tensor<2x{kind}>",
    )
    for kind, elements in [
        *((kind, "[1, 0]") for kind in ("i8", "ui16", "i64", "ui4")),
        *((kind, "[1.5, -2.0]") for kind in ("f16", "bf16", "f32", "f64", "f8E5M2")),
        ("f32", "0x7F800000"),
        ("i1", "[true, false]"),
        ("bf16", "3.0"),
        ("complex<f32>", "[(1.0, 2.0), (0.0, 0xFF800000)]"),
        ("complex<f64>", "(0.5, -1.0)"),
    ]
}

CONTRACTIONS = {
    "dot_general by algorithm": dot(
        "2x3xf32",
        "3x4xf32",
        "2x4xf32",
        "contracting_dims = [1] x [0], algorithm = <lhs_precision_type = f32, rhs_precision_type = "
        "f32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "
        "num_primitive_operations = 1, allow_imprecise_accumulation = false>",
    ),
    "dot_general of 8 bits": dot(
        "2x3xf8E4M3FN", "3x4xf8E4M3FN", "2x4xbf16", "contracting_dims = [1] x [0]"
    ),
    "dot_general": dot(
        "2x3xf32",
        "3x4xf32",
        "2x4xf32",
        "contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]",
    ),
    "dot_general batched": dot(
        "5x2x3xf32",
        "3x5x4xf32",
        "5x2x4xf32",
        "batching_dims = [0] x [1], contracting_dims = [2] x [0]",
    ),
    "dot_general over two dimensions": dot(
        "2x3x4xf32", "4x2x5xf32", "3x5xf32", "contracting_dims = [0, 2] x [1, 0]"
    ),
    "dot_general outer product": dot("2xf32", "3xf32", "2x3xf32", "contracting_dims = [] x []"),
    "dot_general bf16 to f32": dot(
        "2x3xbf16", "3x4xbf16", "2x4xf32", "contracting_dims = [1] x [0]"
    ),
    "dot_general bf16": dot("2x3xbf16", "3x4xbf16", "2x4xbf16", "contracting_dims = [1] x [0]"),
    "dot_general i8 to i32": dot("2x3xi8", "3x4xi8", "2x4xi32", "contracting_dims = [1] x [0]"),
    "dot_general complex": dot(
        "2x3xcomplex<f32>", "3xcomplex<f32>", "2xcomplex<f32>", "contracting_dims = [1] x [0]"
    ),
    "reduce": reduce("2x3x4xf32", "f32", "3xf32", [0, 2]),
    "reduce bf16": reduce("2x3xbf16", "bf16", "3xbf16", [0]),
    "reduce complex": reduce("2x3xcomplex<f64>", "complex<f64>", "3xcomplex<f64>", [0]),
    "reduce two operands": reduce_pair(sum_pair("%a, %c", "%d, %b")),
    "convolution": convolution(
        "2x5x6x3xf32", "3x3x3x4xf32", "2x3x4x4xf32", "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    ),
    "convolution with everything": convolution(
        "2x4x7x5xf32",
        "6x2x2x3xf32",
        "2x6x7x1xf32",
        "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]",
        "stride = [2, 3], pad = [[1, 2], [-1, 2]], lhs_dilate = [2, 1], rhs_dilate = [2, 2], "
        "reverse = [true, false]",
        feature_groups=2,
    ),
    "convolution in batch groups": convolution(
        "4x6x3xf32", "4x3x3xf32", "2x4x4xf32", "[b, 0, f]x[o, 0, i]->[b, 0, f]", batch_groups=2
    ),
    "convolution bf16 to f32": convolution(
        "2x5x3xbf16", "2x3x4xbf16", "2x4x4xf32", "[b, 0, f]x[0, i, o]->[b, 0, f]"
    ),
}

ROWS_BY_INDEX = (
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]"
)
INDEXING = {
    "scatter rows": scatter(
        ["4x3xf32", "5x1xi32", "5x3xf32"], ROWS_BY_INDEX + ", index_vector_dim = 1", adds("f32")
    ),
    "scatter at plain numbers": scatter(
        ["4x3xf32", "5xi64", "5x3xf32"], ROWS_BY_INDEX + ", index_vector_dim = 1", adds("f32")
    ),
    "scatter windows at pairs, index vectors first": scatter(
        ["5x6xf32", "2x3xi32", "2x3x2xf32"],
        "update_window_dims = [0, 2], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 0",
        adds("f32"),
    ),
    "scatter batched, index vectors first": scatter(
        ["2x4xf32", "1x2x5xi32", "2x5xf32"],
        "inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = "
        "[1], scatter_dims_to_operand_dims = [1], index_vector_dim = 0",
        adds("f32"),
    ),
    "scatter one window over": scatter(
        ["5xf32", "1xi32", "2xf32"],
        "update_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 0",
        overwrites("f32"),
        unique="true",
    ),
    "scatter two operands": generic(
        ["4xf32", "4xf32", "5x1xi32", "5xf32", "5xf32"],
        "(tensor<4xf32>, tensor<4xf32>)",
        "stablehlo.scatter",
        "scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], "
        "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>",
        sum_pair("%a, %c", "%b, %d"),
        count=2,
    ),
    "gather rows": gather(
        "4x3xf32",
        "5x1xi32",
        "5x3xf32",
        "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = "
        "1",
        [1, 3],
    ),
    "gather windows at pairs, index vectors first": gather(
        "5x6xf32",
        "2x3xi64",
        "2x3x2xf32",
        "offset_dims = [0, 2], start_index_map = [1, 0], index_vector_dim = 0",
        [2, 2],
    ),
    "gather batched, index vectors first": gather(
        "2x4xbf16",
        "1x2x5xi32",
        "2x5xbf16",
        "collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = "
        "[1], start_index_map = [1], index_vector_dim = 0",
        [1, 1],
    ),
    "dynamic_slice": typed(
        ["4x5xf32", "i32", "i32"], "2x3xf32", "stablehlo.dynamic_slice", ", sizes = [2, 3]"
    ),
    "dynamic_update_slice": typed(
        ["4x5xf32", "2x3xf32", "i32", "i32"], "4x5xf32", "stablehlo.dynamic_update_slice"
    ),
}

TRANSFORMS = {
    "reduce_window": generic(
        ["6x5xf32", "f32"],
        "3x4xf32",
        "stablehlo.reduce_window",
        i64s(window_dimensions=[2, 2], window_strides=[2, 1]),
        adds("f32"),
    ),
    "reduce_window padded and dilated": generic(
        ["5xbf16", "bf16"],
        "5xbf16",
        "stablehlo.reduce_window",
        i64s(window_dimensions=[3], window_strides=[2], base_dilations=[2], window_dilations=[2])
        + ", padding = dense<[[3, 1]]> : tensor<1x2xi64>",
        adds("bf16"),
    ),
    **{
        f"triangular_solve {transpose}": solve(kind, "2x3x3x", "2x3x2x", transpose)
        for transpose, kind in [
            ("NO_TRANSPOSE", "f32"),
            ("TRANSPOSE", "f64"),
            ("ADJOINT", "complex<f64>"),
        ]
    },
    "triangular_solve from the right, upper": solve(
        "f32", "3x3x", "2x3x", left="false", lower="false"
    ),
    "triangular_solve by LAPACK": (
        ["3x3xf32", "2x3xf32"],
        '%r = stablehlo.custom_call @lapack_strsm_ffi(%0, %1) {backend_config = "", '
        "mhlo.backend_config = {side = 82 : "
        "ui8, uplo = 85 : ui8, trans_x = 84 : ui8, diag = 85 : ui8}, operand_layouts = [dense<[0, "
        "1]> : tensor<2xindex>, dense<[0, 1]> : tensor<2xindex>], result_layouts = [dense<[0, 1]> "
        ": tensor<2xindex>]} "
        ": (tensor<3x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>",
    ),
    "fft": typed(
        ["2x4xcomplex<f32>"], "2x4xcomplex<f32>", "stablehlo.fft", ", type = FFT, length = [4]"
    ),
    "rfft": typed(["2x5xf32"], "2x3xcomplex<f32>", "stablehlo.fft", ", type = RFFT, length = [5]"),
    "irfft": typed(
        ["2x3xcomplex<f32>"], "2x5xf32", "stablehlo.fft", ", type = IRFFT, length = [5]"
    ),
}

EXACT = ELEMENTWISE | MOVES | CONTRACTIONS | INDEXING | TRANSFORMS

# What looks like a sum, or is close to one, and has no rule.
WITHOUT_RULE = {
    "reduce max": reduce("2x3xf32", "f32", "2xf32", [1], adds("f32", "maximum")),
    "reduce i1 add, which is or": reduce("2x3xi1", "i1", "2xi1", [1]),
    "reduce doubling the accumulator": reduce(
        "2x3xf32",
        "f32",
        "2xf32",
        [1],
        scalar_body("f32", "%s = stablehlo.add %a, %a : tensor<f32>", returned="s"),
    ),
    "reduce keeping the last": reduce("2x3xf32", "f32", "2xf32", [1], overwrites("f32")),
    "reduce with sums crossed": reduce_pair(sum_pair("%a, %d", "%b, %c")),
    "reduce of which one result is no sum": reduce_pair(sum_pair("%a, %c", "%b, %b")),
    "scatter max": scatter(
        ["4x3xf32", "5x1xi32", "5x3xf32"],
        ROWS_BY_INDEX + ", index_vector_dim = 1",
        adds("f32", "maximum"),
    ),
    "reduce_window max": generic(
        ["6xf32", "f32"],
        "5xf32",
        "stablehlo.reduce_window",
        i64s(window_dimensions=[2]),
        adds("f32", "maximum"),
    ),
    "i1 add, which is or": elementwise("add", "3xi1", 2),
    "dot_general of i1, which is or of and": dot(
        "2x3xi1", "3x4xi1", "2x4xi1", "contracting_dims = [1] x [0]"
    ),
    "a custom call": (
        ["3xf32"],
        "%r = stablehlo.custom_call @Frobnicate(%0) : (tensor<3xf32>) -> tensor<3xf32>",
    ),
    "exponential": (["3xf32"], "%r = stablehlo.exponential %0 : tensor<3xf32>"),
}
