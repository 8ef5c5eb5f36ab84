"""The peephole for vmapped modules: where it fires, where not, and results but for rounding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax

from hlo_surgery.api import fold_squared_sums, optimize
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.fold_squared_sums import fold_squared_sums as fold_in_place
from tests.strategies.golden import assert_text, parse, text_of

# The outer product of h [3, 4] and l [3, 5] for each of three examples, its square, and the sum of
# it.
PRODUCT = (
    "%o = stablehlo.dot_general %h, %l, batching_dims = [0] x [0], contracting_dims = [] x [] : "
    "(tensor<3x4xf32>, tensor<3x5xf32>) -> tensor<3x4x5xf32>"
)
SQUARE = "%s = stablehlo.multiply %o, %o : tensor<3x4x5xf32>"
ZERO = "%z = stablehlo.constant dense<0.0> : tensor<f32>"
SUM = (
    "%g = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [0] : "
    "(tensor<3x4x5xf32>, tensor<f32>) -> tensor<4x5xf32>"
)
HEAD = "%h: tensor<3x4xf32>, %l: tensor<3x5xf32>, %w: tensor<4x5xf32>, %m: tensor<3x4x5xf32>"


def program(*ops, kind="4x5xf32", arguments=HEAD):
    body = "\n".join([ZERO, *ops])
    return (
        f"func.func @main({arguments}) -> tensor<{kind}> {{ {body} \n return %g : tensor<{kind}> }}"
    )


def mapped(*ops):
    """The squares of the product after ops that make %s of %o, summed."""
    return program(PRODUCT, *ops, SUM)


def folded(text):
    module = parse(text)
    count = fold_in_place(module)
    assert module.operation.verify()
    return module, count


SQUARED = mapped(SQUARE)
TRANSPOSED = program(
    PRODUCT,
    "%t = stablehlo.transpose %o, dims = [2, 0, 1] : (tensor<3x4x5xf32>) -> tensor<5x3x4xf32>",
    "%s = stablehlo.multiply %t, %t : tensor<5x3x4xf32>",
    SUM.replace("[0]", "[1]")
    .replace("3x4x5", "5x3x4")
    .replace("tensor<4x5xf32>", "tensor<5x4xf32>"),
    kind="5x4xf32",
)
MERGED = program(
    PRODUCT,
    "%r = stablehlo.reshape %o : (tensor<3x4x5xf32>) -> tensor<3x1x20xf32>",
    "%s = stablehlo.multiply %r, %r : tensor<3x1x20xf32>",
    SUM.replace("3x4x5", "3x1x20").replace("tensor<4x5xf32>", "tensor<1x20xf32>"),
    kind="1x20xf32",
)
SPLIT = program(
    PRODUCT,
    "%r = stablehlo.reshape %o : (tensor<3x4x5xf32>) -> tensor<3x2x2x5xf32>",
    "%s = stablehlo.multiply %r, %r : tensor<3x2x2x5xf32>",
    SUM.replace("3x4x5", "3x2x2x5").replace("tensor<4x5xf32>", "tensor<2x2x5xf32>"),
    kind="2x2x5xf32",
)
SCALED = mapped(
    "%c = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f32>) -> tensor<3x4x5xf32>",
    "%d = stablehlo.multiply %c, %o : tensor<3x4x5xf32>",
    "%s = stablehlo.multiply %d, %d : tensor<3x4x5xf32>",
).replace("%w: tensor<4x5xf32>", "%w: tensor<f32>")
UNIT = program(
    PRODUCT.replace("contracting_dims = [] x []", "contracting_dims = [1] x [1]")
    .replace("3x4xf32", "3x1x4xf32")
    .replace("tensor<3x5xf32>", "tensor<3x1x5xf32>"),
    SQUARE,
    SUM,
    arguments="%h: tensor<3x1x4xf32>, %l: tensor<3x1x5xf32>",
)
COMPLEX_HEAD = "%h: tensor<3x4xcomplex<f32>>, %l: tensor<3x5xcomplex<f32>>"
COMPLEX_PRODUCT = PRODUCT.replace("f32", "complex<f32>")
ABSOLUTE_OF_COMPLEX = program(
    COMPLEX_PRODUCT,
    "%s = stablehlo.abs %o : (tensor<3x4x5xcomplex<f32>>) -> tensor<3x4x5xf32>",
    SUM,
    arguments=COMPLEX_HEAD,
)
CUBED = mapped(SQUARE.replace("%s", "%q"), "%s = stablehlo.multiply %q, %o : tensor<3x4x5xf32>")
POWER = mapped(
    "%two = stablehlo.constant dense<2.0> : tensor<3x4x5xf32>",
    "%s = stablehlo.power %o, %two : tensor<3x4x5xf32>",
)
FIRES = {
    "square": SQUARED,
    "absolute value": mapped("%s = stablehlo.abs %o : tensor<3x4x5xf32>"),
    "sign": mapped("%s = stablehlo.sign %o : tensor<3x4x5xf32>"),
    "cube": CUBED,
    "power": POWER,
    "plain sum": program(PRODUCT, SUM.replace("%s", "%o")),
    "transposed": TRANSPOSED,
    "merged dimensions": MERGED,
    "split dimensions": SPLIT,
    "times a number": SCALED,
    "contracted over one position": UNIT,
    "bf16 operands of an f32 product": SQUARED.replace(
        "tensor<3x4xf32>", "tensor<3x4xbf16>"
    ).replace("tensor<3x5xf32>", "tensor<3x5xbf16>"),
}

POSITIONS = program(
    "%o = stablehlo.dot_general %h, %l, batching_dims = [0] x [0], contracting_dims = [1] x [1] : "
    "(tensor<3x2x4xf32>, tensor<3x2x5xf32>) -> tensor<3x4x5xf32>",
    SQUARE,
    SUM,
    arguments="%h: tensor<3x2x4xf32>, %l: tensor<3x2x5xf32>",
)
MADE_IN_BF16 = program(
    PRODUCT.replace("3x4x5xf32", "3x4x5xbf16"),
    "%c = stablehlo.convert %o : (tensor<3x4x5xbf16>) -> tensor<3x4x5xf32>",
    "%s = stablehlo.multiply %c, %c : tensor<3x4x5xf32>",
    SUM,
)
NARROWED = program(
    PRODUCT,
    "%c = stablehlo.convert %o : (tensor<3x4x5xf32>) -> tensor<3x4x5xbf16>",
    "%d = stablehlo.convert %c : (tensor<3x4x5xbf16>) -> tensor<3x4x5xf32>",
    "%s = stablehlo.multiply %d, %d : tensor<3x4x5xf32>",
    SUM,
)
ALGORITHM = SQUARED.replace(
    "contracting_dims = [] x []",
    "contracting_dims = [] x [], algorithm = <lhs_precision_type = tf32, rhs_precision_type = "
    "tf32, "
    "accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "
    "num_primitive_operations = 1, "
    "allow_imprecise_accumulation = false>",
)
NO_DOT = program(
    "%a = stablehlo.broadcast_in_dim %h, dims = [0, 1] : (tensor<3x4xf32>) -> tensor<3x4x5xf32>",
    "%b = stablehlo.broadcast_in_dim %l, dims = [0, 2] : (tensor<3x5xf32>) -> tensor<3x4x5xf32>",
    "%s = stablehlo.multiply %a, %b : tensor<3x4x5xf32>",
    SUM,
)
REAL_PART_SQUARED = program(
    COMPLEX_PRODUCT,
    "%r = stablehlo.real %o : (tensor<3x4x5xcomplex<f32>>) -> tensor<3x4x5xf32>",
    "%s = stablehlo.multiply %r, %r : tensor<3x4x5xf32>",
    SUM,
    arguments=COMPLEX_HEAD,
)
TWO_PRECISIONS = mapped(
    PRODUCT.replace("%o", "%p").replace(" : (", ", precision = [HIGHEST, HIGHEST] : ("),
    "%s = stablehlo.multiply %o, %p : tensor<3x4x5xf32>",
)
DOES_NOT_FIRE = {
    "the sum starts at one": SQUARED.replace("dense<0.0>", "dense<1.0>"),
    "it is a maximum": SQUARED.replace("stablehlo.add across", "stablehlo.maximum across"),
    "the product is of integers": SQUARED.replace("f32", "i32").replace("0.0", "0"),
    "the product is rounded to bf16": SQUARED.replace("f32", "bf16"),
    "the product is rounded to f16": SQUARED.replace("f32", "f16"),
    "the product of f32 is made in bf16": MADE_IN_BF16,
    "the product is converted to fewer bits": NARROWED,
    "the dot has an algorithm of its own": ALGORITHM,
    "positions are contracted": POSITIONS,
    "each example has a number": mapped(
        "%c = stablehlo.broadcast_in_dim %l, dims = [0, 2] : "
        "(tensor<3x5xf32>) -> tensor<3x4x5xf32>",
        "%d = stablehlo.multiply %c, %o : tensor<3x4x5xf32>",
        "%s = stablehlo.multiply %d, %d : tensor<3x4x5xf32>",
    ),
    "the function does not factor": mapped("%s = stablehlo.tanh %o : tensor<3x4x5xf32>"),
    "something is added": mapped("%s = stablehlo.add %o, %m : tensor<3x4x5xf32>"),
    "a factor is as large as the product": mapped(
        "%s = stablehlo.multiply %o, %m : tensor<3x4x5xf32>"
    ),
    "there is no outer product": NO_DOT,
    "the product is complex": ABSOLUTE_OF_COMPLEX,
    "only the real part is squared": REAL_PART_SQUARED,
    "two products are made in different precisions": TWO_PRECISIONS,
}


@pytest.mark.parametrize("text", FIRES.values(), ids=FIRES.keys())
def test_fold_fires(text):
    module, count = folded(text)
    assert count == 1
    absent = ["3x4x5", "3x5x4", "5x3x4", "3x1x20", "3x2x2x5"]
    assert_text(
        text_of(module),
        "\n".join(
            ["CHECK: func.func @main{{.*}} -> ", *(f"CHECK-NOT: tensor<{n}x" for n in absent)]
        ),
    )
    assert fold_in_place(module) == 0


@pytest.mark.parametrize("text", DOES_NOT_FIRE.values(), ids=DOES_NOT_FIRE.keys())
def test_fold_does_not_fire_when(text):
    module, count = folded(text)
    assert count == 0
    assert "stablehlo.reduce(" in text_of(module)
    assert "3x4x5x" in text_of(module)


@pytest.mark.parametrize("name", ["square", "absolute value"])
def test_fold_contracts_the_examples(name):
    """Where all is finite; else the products of one example are summed after those of another."""
    text = text_of(folded(FIRES[name])[0])
    assert_text(
        text,
        """
        CHECK: %[[G:.*]] = stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [0] x [0]
        CHECK: %[[R:.*]] = "stablehlo.case"
        CHECK: stablehlo.while
        CHECK: stablehlo.return %[[G]]
        CHECK: return %[[R]]
        """,
    )
    assert "3x4x5" not in text.split("@main", 1)[1].split("\n", 1)[1]


def test_fold_keeps_the_precision():
    text = FIRES["absolute value"].replace(
        " : (tensor<3x4xf32>,", ", precision = [HIGHEST, HIGH] : (tensor<3x4xf32>,"
    )
    assert_text(
        text_of(folded(text)[0]), "CHECK: contracting_dims = [0] x [0], precision = [HIGHEST, HIGH]"
    )


def test_fold_leaves_a_module_without_such_sums_as_it_is():
    text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    assert fold_squared_sums(text).text() == mlir.to_text(parse(text))


def loss(params, x, y):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return jnp.mean(jnp.abs(x @ w + b - y) ** 2)


def example(dtype=np.float32, sizes=(6, 5, 4), batch=7, seed=0):
    draw = np.random.default_rng(seed)

    def normal(*shape):
        imaginary = 1j * draw.normal(size=shape) if np.dtype(dtype).kind == "c" else 0
        return jnp.asarray(np.asarray(draw.normal(size=shape) + imaginary).astype(dtype))

    params = [(normal(n, m) / n, normal(m)) for n, m in itertools.pairwise(sizes)]
    return params, normal(batch, sizes[0]), normal(batch, sizes[-1])


def gradients(*args):
    return jax.vmap(jax.grad(loss), (None, 0, 0))(*args)


def over_examples(statistic):
    return lambda *args: jax.tree.map(statistic, gradients(*args))


STATISTICS = {
    "second moment": lambda g: jnp.mean(g**2, 0),
    "sum of squares": lambda g: jnp.sum(jnp.square(g), 0),
    "mean": lambda g: jnp.mean(g, 0),
    "absolute value": lambda g: jnp.mean(jnp.abs(g), 0),
    "sign": lambda g: jnp.mean(jnp.sign(g), 0),
    "cube": lambda g: jnp.mean(g**3, 0),
    "fifth power": lambda g: jnp.mean(jnp.abs(g) ** 5.0, 0),
    "scaled": lambda g: jnp.sqrt(jnp.mean((1.5 * g) ** 2, 0)),
    "norms": lambda g: jnp.sqrt(jnp.sum(g**2, tuple(range(1, g.ndim)))),
    "norms of flat gradients": jax.vmap(lambda g: jnp.linalg.norm(g.ravel())),
    "examples last": lambda g: jnp.sum(jnp.moveaxis(g, 0, -1) ** 2, -1),
}


def assert_close(found, expected, eps):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        scale = float(jnp.max(jnp.abs(other), initial=0))
        np.testing.assert_allclose(one, other, rtol=50 * eps, atol=50 * eps * scale)


def products_left(optimized, *args):
    """Lines of the module that hold an outer product of a weight's gradient."""
    text = str(optimized.module(*args).code)
    shapes = [
        f"7x{'x'.join(map(str, shape))}x"
        for shape in ((6, 5), (5, 6), (5, 4), (4, 5), (30,), (20,))
    ]
    return [line for line in text.splitlines() if any(shape in line for shape in shapes)]


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS.keys())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_vmapped_gradients(statistic, dtype):
    with jax.enable_x64(dtype == np.float64):
        args = example(dtype)
        plain = over_examples(statistic)
        optimized = optimize(plain)
        assert_close(optimized(*args), jax.jit(plain)(*args), np.finfo(dtype).eps)
        assert products_left(optimized, *args) == []


def test_bf16_gradients_stay_as_they_are():
    args = example(jnp.bfloat16)
    plain = over_examples(STATISTICS["second moment"])
    optimized = optimize(plain)
    assert any("bf16" in line for line in products_left(optimized, *args))
    for one, other in zip(
        jax.tree.leaves(optimized(*args)), jax.tree.leaves(jax.jit(plain)(*args)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_product_that_is_returned_stays():
    def both(*args):
        return gradients(*args), over_examples(STATISTICS["second moment"])(*args)

    args = example()
    found = optimize(both)(*args)
    assert_close(found, jax.jit(both)(*args), np.finfo(np.float32).eps)


def outer(h, e):
    return jnp.einsum("bi,bj->bij", h, e)


RANGES = {
    "zero beside what overflows": (
        lambda h, e: jnp.mean(outer(h, e) ** 2, 0),
        [0, 0, 0],
        [1e25, 1e25],
    ),
    "some zero": (lambda h, e: jnp.mean(outer(h, e) ** 2, 0), [0, 1e-30, 1e-10], [1e25, 1]),
    "sign of nan": (lambda h, e: jnp.mean(jnp.sign(outer(h, e)), 0), [np.inf, 1, 1], [0, 1]),
    "sign of what is far smaller": (
        lambda h, e: jnp.mean(jnp.sign(outer(h, e)), 0),
        [1e-30, 1e10, -1e-30, 1],
        [1e-5, 1],
    ),
    "nan": (lambda h, e: jnp.mean(jnp.abs(outer(h, e)), 0), [np.nan, 0, 1], [0, np.inf]),
    "overflow": (lambda h, e: jnp.mean(outer(h, e) ** 2, 0), [1e15, 1e-30, 0, 1], [1e10, 0, 1]),
    "scaled up": (
        lambda h, e: jnp.sum((outer(h, e) * np.float32(1e20)) ** 2, 0),
        [1e-25, 1e-24],
        [1, 0],
    ),
    "scaled down": (
        lambda h, e: jnp.sum((outer(h, e) * np.float32(1e-20)) ** 2, 0),
        [1e25, 1e24],
        [1, 0],
    ),
    "both wide": (lambda h, e: jnp.mean(outer(h, e) ** 2, 0), [1e15, 1e-15, 0], [1e15, 1e-15, 0]),
    "fourth power": (lambda h, e: jnp.mean(outer(h, e) ** 4, 0), [1e-30, 1e-28, 0], [1e29, 1e31]),
    "norms": (lambda h, e: jnp.sum(outer(h, e) ** 2, (1, 2)), [0, 1e-30, 1e-20], [1e25, 1e30]),
}


@pytest.mark.parametrize("name", RANGES)
def test_finite_stays_finite_and_nan_stays_nan(name):
    f, first, second = RANGES[name]
    h, e = (jnp.asarray(np.resize(np.float32(x), (3, 6))) for x in (first, second))
    expected, optimized = jax.jit(f)(h, e), optimize(f)
    found = optimized(h, e)
    assert "stablehlo.case" in optimized.module(h, e).text()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_sum_over_nothing_within_is_no_outer_product():
    def squares(h, e):
        return jnp.sum(jnp.einsum("bki,bkj->bij", h, e) ** 2, 0)

    found = optimize(squares)(jnp.ones((3, 0, 4)), jnp.ones((3, 0, 5)))
    np.testing.assert_array_equal(found, np.zeros((4, 5)))


def test_squares_that_would_overflow_alone_do_not():
    def squares(h, e):
        product = lax.dot_general(h, e, (((), ()), ((0,), (0,))))
        return jnp.sum(product**2, 0), jnp.sum(product**2, (1, 2))

    h, e = jnp.full((3, 4), 1e25) * jnp.arange(1.0, 4)[:, None], jnp.full((3, 5), 1e-25)
    assert_close(optimize(squares)(h, e), jax.jit(squares)(h, e), np.finfo(np.float32).eps)


def test_microbatches_in_a_scan():
    def accumulated(params, x, y):
        def step(total, batch):
            squares = over_examples(STATISTICS["sum of squares"])(params, *batch)
            return jax.tree.map(jnp.add, total, squares), None

        return lax.scan(step, jax.tree.map(jnp.zeros_like, params), (x, y))[0]

    params, x, y = example(batch=21)
    args = params, x.reshape(3, 7, -1), y.reshape(3, 7, -1)
    optimized = optimize(accumulated)
    assert_close(optimized(*args), jax.jit(accumulated)(*args), np.finfo(np.float32).eps)
    assert products_left(optimized, *args) == []


def test_time_major_examples():
    def moments(params, x, y):
        g = jax.vmap(jax.grad(loss), (None, 1, 1), out_axes=-1)(params, x, y)
        return jax.tree.map(lambda g: jnp.mean(g**2, -1), g)

    params, x, y = example()
    args = params, x.T, y.T
    optimized = optimize(moments)
    assert_close(optimized(*args), jax.jit(moments)(*args), np.finfo(np.float32).eps)
    assert products_left(optimized, *args) == []


def test_optimized_functions_compose_with_jit_and_are_lowered_once():
    calls = []

    def moments(params, x, y):
        calls.append(x.shape)
        return over_examples(STATISTICS["second moment"])(params, x, y)

    optimized, args = optimize(moments), example()
    expected = jax.jit(lambda *args: jax.tree.map(jnp.sqrt, moments(*args)))(*args)
    calls.clear()
    found = jax.jit(lambda *args: jax.tree.map(jnp.sqrt, optimized(*args)))(*args)
    assert_close(found, expected, np.finfo(np.float32).eps)
    optimized(*args)
    assert calls == [(7, 6)]


def test_no_gradient_of_every_example_is_left():
    args = example(sizes=(256,) * 5, batch=64)
    plain = over_examples(lambda g: (jnp.mean(g, 0), jnp.mean(g**2, 0)))
    optimized = optimize(plain)
    assert "tensor<64x256x256x" not in optimized.module(*args).text()
    temporaries = [
        jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes
        for f in (plain, optimized)
    ]
    assert temporaries[0] >= 10 * temporaries[1]


FUNCTIONS = {
    "plain": lambda x: x,
    "square": lambda x: x * x,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "cube": lambda x: x**3,
    "signed square": lambda x: x * jnp.abs(x),
    "square of sign": lambda x: jnp.sign(x) ** 2,
}


@st.composite
def sums(draw):
    """Sizes of b, d, f; an order of these; what is summed; a function; which dimensions a scale
    has; what is merged.
    """
    sizes = draw(st.tuples(*[st.integers(1, 4)] * 3))
    order = draw(st.permutations(range(3)))
    summed = draw(st.sets(st.integers(0, 2), min_size=1))
    scaled = draw(st.sets(st.integers(0, 2), max_size=2))
    return (
        sizes,
        order,
        sorted(summed),
        draw(st.sampled_from(sorted(FUNCTIONS))),
        sorted(scaled),
        draw(st.booleans()),
    )


@given(sums(), st.integers(0, 99))
def test_any_sum_of_any_outer_product(drawn, seed):
    sizes, order, summed, name, scaled, divides = drawn
    assume(any(sizes[order[d]] > 1 for d in summed))
    random = np.random.default_rng(seed)
    h, e = (jnp.asarray(random.normal(size=(sizes[0], n)), jnp.float32) for n in sizes[1:])
    scale = jnp.asarray(random.uniform(0.5, 2, size=[sizes[order[d]] for d in scaled]), jnp.float32)

    def total(h, e, scale):
        product = lax.dot_general(h, e, (((), ()), ((0,), (0,)))).transpose(order)
        scales = lax.broadcast_in_dim(scale, product.shape, scaled)
        return jnp.sum(FUNCTIONS[name](product / scales if divides else product * scales), summed)

    assert_close(
        optimize(total)(h, e, scale), jax.jit(total)(h, e, scale), np.finfo(np.float32).eps
    )


def test_what_is_no_function_is_not_optimized():
    with pytest.raises(TypeError, match="optimize takes a function, not 3"):
        optimize(3)
