"""Constants, prefix sums and called functions: evaluated and taken as XLA has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.dataflow.numbers import evaluate
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import sum_windows
from tests.raising.single_ops import parsed

ENDS = {"i8": [-128, -1, 100, 127], "ui8": [0, 1, 200, 255], "i16": [-(2**15), -3, 255, 2**15 - 1]}
TYPES = {"i1": np.bool_, "i8": np.int8, "ui8": np.uint8, "i16": np.int16}
WRAPPED = [
    (kind, name) for kind in ENDS for name in ("add", "subtract", "multiply", "not", "negate")
]
CONVERTED = [(kind, to) for kind in ENDS for to in TYPES]


def evaluated(kind, numbers, op, to):
    constant = f"%c = stablehlo.constant dense<{numbers}> : tensor<4x{kind}>"
    text = op.format(x="%c")
    code = mlir.parse(
        f"func.func @main() -> tensor<4x{to}> {{\n{constant}\n{text}\nreturn %r : tensor<4x{to}> }}"
    )
    return evaluate(mlir.return_operation(mlir.body(mlir.main_function(code))).operands[0])


def run(kind, numbers, op, to):
    text = op.format(x="%x")
    code = f"""func.func @main(%x: tensor<4x{kind}>)
        -> (tensor<4x{to}> {{jax.result_info = "r"}}) {{\n{text}\nreturn %r : tensor<4x{to}> }}"""
    return np.asarray(hs.modules.load(code).call(np.array(numbers, TYPES[kind]))[0])


@pytest.mark.parametrize(("kind", "name"), WRAPPED)
def test_integers_wrap(kind, name):
    one = f"%r = stablehlo.{name} {{x}} : tensor<4x{kind}>"
    two = f"%r = stablehlo.{name} {{x}}, {{x}} : tensor<4x{kind}>"
    op = one if name in ("not", "negate") else two
    numbers = ENDS[kind]
    np.testing.assert_array_equal(
        evaluated(kind, numbers, op, kind), run(kind, numbers, op, kind), strict=True
    )


@pytest.mark.parametrize(("kind", "to"), CONVERTED)
def test_conversions(kind, to):
    op = f"%r = stablehlo.convert {{x}} : (tensor<4x{kind}>) -> tensor<4x{to}>"
    numbers = ENDS[kind]
    np.testing.assert_array_equal(
        evaluated(kind, numbers, op, to), run(kind, numbers, op, to), strict=True
    )


BITS = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui64": np.uint64,
}


def evaluated_of_division(name, kind, dividends, divisors):
    """What a division of two constants evaluates to, with an op of its own behind it."""
    lines = (
        f"%{i} = stablehlo.constant dense<{list(v)}> : tensor<3x{kind}>"
        for i, v in enumerate((dividends, divisors))
    )
    text = "\n".join([*lines, f"%2 = stablehlo.{name} %0, %1 : tensor<3x{kind}>"])
    module = parsed(
        f"func.func @main() -> tensor<3x{kind}> {{ {text} \n return %2 : tensor<3x{kind}> }}"
    )
    return evaluate(mlir.return_operation(mlir.body(mlir.main_function(module))).operands[0])


@pytest.mark.parametrize("kind", [*BITS, "ui4", "i4"])
@pytest.mark.parametrize("name", ["divide", "remainder"])
def test_by_zero_there_is_no_number(name, kind):
    assert evaluated_of_division(name, kind, (1, 2, 3), (1, 0, 2)) is None


@pytest.mark.parametrize("kind", BITS)
def test_numbers_of_both_signs(kind):
    signed = BITS[kind](0) - 1 < 0 if kind[0] == "i" else False
    dividends, divisors = ((-7, 7, 6), (2, -3, -1)) if signed else ((7, 8, 9), (2, 3, 1))
    quotients = np.array([int(a / b) for a, b in zip(dividends, divisors, strict=True)], BITS[kind])
    np.testing.assert_array_equal(
        evaluated_of_division("divide", kind, dividends, divisors), quotients
    )
    remainders = np.array(dividends) - quotients.astype(int) * np.array(divisors)
    np.testing.assert_array_equal(
        evaluated_of_division("remainder", kind, dividends, divisors), remainders
    )


@pytest.mark.parametrize("name", ["divide", "remainder"])
def test_the_least_integer_by_minus_one_overflows(name):
    assert evaluated_of_division(name, "i32", (-(2**31), 1, 2), (-1, 1, 1)) is None
    assert evaluated_of_division(name, "i32", (-(2**31), 1, 2), (1, -1, 1)) is not None


def by_zero_along_the_examples(w, x):
    numbers = lax.div(lax.iota(jnp.int32, 6), jnp.zeros(6, jnp.int32))
    return jnp.mean((x * w)[numbers, 0] * x[:, 0] * w)


def through_complex_numbers(w, x):
    numbers = lax.iota(jnp.int32, 6).astype(jnp.complex64).real.astype(jnp.int32)
    return jnp.mean((x * w)[numbers, 0] ** 2)


@pytest.mark.parametrize("loss", [by_zero_along_the_examples, through_complex_numbers])
def test_indices_that_cannot_be_evaluated_are_refused(loss):
    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.norms())(jnp.float32(2), jnp.ones((6, 4)))


W, X = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(4, 3), (5, 6, 4)]))

MODULE = """
func.func @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %found:2 = stablehlo.composite "chlo.scan" %x, %zero ({
  ^bb0(%own: tensor<2xf32>, %before: tensor<2xf32>):
    %sum = stablehlo.OP %own, %before : tensor<2xf32>
    stablehlo.return %sum, %sum : tensor<2xf32>, tensor<2xf32>
  }) {composite_attributes = {dimension = 1 : i64, is_associative = true, is_reverse = BACKWARDS},
      decomposition = @unused, version = 1 : i32}
    : (tensor<2x3xf32>, tensor<2xf32>) -> (tensor<2x3xf32>, tensor<2xf32>)
  return %found#0, %found#1 : tensor<2x3xf32>, tensor<2xf32>
}
func.func private @unused(%x: tensor<2x3xf32>, %y: tensor<2xf32>)
    -> (tensor<2x3xf32>, tensor<2xf32>) {
  return %x, %y : tensor<2x3xf32>, tensor<2xf32>
}
"""


def forwards(w, x):
    return jnp.mean(jnp.sum(jnp.cumsum(jnp.tanh(x @ w), 1) ** 2, (1, 2)))


def backwards(w, x):
    return jnp.mean(jnp.sum(lax.cumsum(jnp.tanh(x @ w), 1, reverse=True) ** 2, (1, 2)))


def over_examples(w, x):
    return jnp.mean(jnp.sum(jnp.cumsum(jnp.tanh(x @ w), 0) ** 2, (1, 2)))


def lowered(loss):
    return jax.jit(jax.grad(loss)).trace(W, X).lower(lowering_platforms=("cuda",)).as_text()


def exported(loss):
    return jax.export.export(jax.jit(jax.grad(loss)), platforms=["cuda"])(W, X).mlir_module()


@pytest.mark.parametrize("told", ["false", "true"])
def test_a_scan_that_adds_up(told):
    module = mlir.parse(MODULE.replace("OP", "add").replace("BACKWARDS", told))
    sum_windows(module)
    text = mlir.to_text(module)
    assert "reduce_window" in text
    assert "composite" not in text


@pytest.mark.parametrize(("op", "length"), [("maximum", "3"), ("add", "0")])
def test_another_scan_stays(op, length):
    text = MODULE.replace("2x3x", f"2x{length}x").replace("OP", op)
    module = mlir.parse(text.replace("BACKWARDS", "false"))
    sum_windows(module)
    assert "composite" in mlir.to_text(module)


@pytest.mark.parametrize("dumped", [lowered, exported])
@pytest.mark.parametrize("loss", [forwards, backwards])
def test_sums_of_each_example(loss, dumped):
    module = hs.modules.rewrite_module(dumped(loss), batch=[1], statistics=hs.per_example())
    own = jax.vmap(lambda x: jax.grad(loss)(W, x[None]))(X)
    np.testing.assert_allclose(module.call(W, X)[1], own, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dumped", [lowered, exported])
def test_sums_over_the_examples_are_refused(dumped):
    with pytest.raises(hs.Refusal, match="along the example axis"):
        hs.modules.rewrite_module(dumped(over_examples), batch=[1], statistics=hs.per_example())


W_OF_FUNCTIONS, X_OF_FUNCTIONS = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(3, 6), (5, 3)])
)


def largest(w, x):
    return jnp.mean(jnp.sum(lax.approx_max_k(jnp.tanh(x @ w), 2)[0] ** 2, -1))


def in_a_loop(w, x):
    def step(h, _):
        return h - 0.1 * lax.approx_min_k(jnp.tanh(h @ w), 2)[0].sum(-1, keepdims=True), None

    return jnp.mean(lax.scan(step, x, None, length=3)[0] ** 2)


@pytest.mark.parametrize("loss", [largest, in_a_loop])
def test_statistics_are_those_of_single_examples(loss):
    f = hs.grad(loss, statistics={"all": hs.per_example(), "norms": hs.norms()})
    found = f(W_OF_FUNCTIONS, X_OF_FUNCTIONS)[1]
    alone = jnp.stack([jax.grad(loss)(W_OF_FUNCTIONS, x[None]) for x in X_OF_FUNCTIONS])
    np.testing.assert_allclose(found["all"], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["norms"], jnp.linalg.norm(alone, axis=(1, 2)), rtol=1e-5)


def test_over_the_examples_is_refused():
    def loss(w, x):
        return jnp.mean(lax.approx_max_k(jnp.tanh(x @ w), 2, reduction_dimension=0)[0])

    with pytest.raises(hs.Refusal, match="reduced to one value"):
        hs.grad(loss, statistics=hs.norms())(W_OF_FUNCTIONS, X_OF_FUNCTIONS)
