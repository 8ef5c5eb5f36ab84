"""Integer division evaluated ahead: what has no result is not evaluated."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.dataflow.numbers import evaluate
from hlo_surgery.passes.ir import mlir
from tests.raising.single_ops import parsed

BITS = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui64": np.uint64,
}


def evaluated(name, kind, dividends, divisors):
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
    assert evaluated(name, kind, (1, 2, 3), (1, 0, 2)) is None


@pytest.mark.parametrize("kind", BITS)
def test_numbers_of_both_signs(kind):
    signed = BITS[kind](0) - 1 < 0 if kind[0] == "i" else False
    dividends, divisors = ((-7, 7, 6), (2, -3, -1)) if signed else ((7, 8, 9), (2, 3, 1))
    quotients = np.array([int(a / b) for a, b in zip(dividends, divisors, strict=True)], BITS[kind])
    np.testing.assert_array_equal(evaluated("divide", kind, dividends, divisors), quotients)
    remainders = np.array(dividends) - quotients.astype(int) * np.array(divisors)
    np.testing.assert_array_equal(evaluated("remainder", kind, dividends, divisors), remainders)


@pytest.mark.parametrize("name", ["divide", "remainder"])
def test_the_least_integer_by_minus_one_overflows(name):
    assert evaluated(name, "i32", (-(2**31), 1, 2), (-1, 1, 1)) is None
    assert evaluated(name, "i32", (-(2**31), 1, 2), (1, -1, 1)) is not None


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
