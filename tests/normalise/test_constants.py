"""Constants: numbers are evaluated in their own types, as XLA has them where they are arguments."""

import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.dataflow.numbers import evaluate
from hlo_surgery.passes.ir import mlir

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
    return np.asarray(hs.load(code).call(np.array(numbers, TYPES[kind]))[0])


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


def test_added_truth_values_are_not_evaluated():
    """XLA adds those to true where it runs, and to false where it folds constants."""
    values = "[false, true, true, false]"
    assert evaluated("i1", values, "%r = stablehlo.add {x}, {x} : tensor<4xi1>", "i1") is None
    both = evaluated("i1", values, "%r = stablehlo.and {x}, {x} : tensor<4xi1>", "i1")
    assert both.tolist() == [False, True, True, False]
