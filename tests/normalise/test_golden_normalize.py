"""Golden IR of `normalize`: CHECK lines of FileCheck."""

import pytest

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from tests.strategies.golden import assert_text, text_of

NESTED_CALLS = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = call @outer(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %z = call @inner(%y) : (tensor<3xf32>) -> tensor<3xf32>
  return %z : tensor<3xf32>
}
func.func private @outer(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = call @inner(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %z = stablehlo.negate %y : tensor<3xf32>
  return %z : tensor<3xf32>
}
func.func private @inner(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.tanh %x : tensor<3xf32>
  return %y : tensor<3xf32>
}
"""

CALL_IN_A_REGION = """
func.func @main(%x: tensor<3xf32>, %z: tensor<f32>) -> tensor<f32> {
  %r = "stablehlo.reduce"(%x, %z) <{dimensions = array<i64: 0>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = func.call @plus(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  return %r : tensor<f32>
}
func.func private @plus(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %s = stablehlo.add %a, %b : tensor<f32>
  return %s : tensor<f32>
}
"""

CHLO = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = chlo.square %x : tensor<3xf32> -> tensor<3xf32>
  return %y : tensor<3xf32>
}
"""

DEPRECATED = """
func.func @main(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> tensor<5x2x4xf32> {
  %y = stablehlo.dot %x, %w : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  %m = "stablehlo.map"(%y) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>):
    %t = stablehlo.tanh %a : tensor<f32>
    stablehlo.return %t : tensor<f32>
  }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %z = stablehlo.broadcast %m, sizes = [5] : (tensor<2x4xf32>) -> tensor<5x2x4xf32>
  return %z : tensor<5x2x4xf32>
}
"""

COMPOSITE = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.composite "my.scale" %x {decomposition = @scale} : (tensor<3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}
func.func private @scale(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.add %x, %x : tensor<3xf32>
  return %y : tensor<3xf32>
}
"""

EQUAL_OPS = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %a = stablehlo.tanh %x : tensor<3xf32>
  %b = stablehlo.tanh %x : tensor<3xf32>
  %dead = stablehlo.negate %a : tensor<3xf32>
  %r = stablehlo.add %a, %b : tensor<3xf32>
  return %r : tensor<3xf32>
}
"""

DEAD_CHAIN = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %a = stablehlo.tanh %x : tensor<3xf32>
  %b = stablehlo.negate %a : tensor<3xf32>
  %c = stablehlo.exponential %b : tensor<3xf32>
  return %x : tensor<3xf32>
}
"""

MODULES = {
    "nested calls": NESTED_CALLS,
    "a call in a region": CALL_IN_A_REGION,
    "chlo": CHLO,
    "deprecated": DEPRECATED,
    "composite": COMPOSITE,
    "equal ops": EQUAL_OPS,
    "a dead chain": DEAD_CHAIN,
}


def normalized(text):
    module = mlir.parse(text)
    normalize(module)
    return text_of(module)


def test_nested_calls_are_inlined():
    assert_text(
        normalized(NESTED_CALLS),
        """
        CHECK: func.func @main(%[[X:.*]]: tensor<3xf32>)
        CHECK-NEXT: %[[A:.*]] = stablehlo.tanh %[[X]]
        CHECK-NEXT: %[[B:.*]] = stablehlo.negate %[[A]]
        CHECK-NEXT: %[[C:.*]] = stablehlo.tanh %[[B]]
        CHECK-NEXT: return %[[C]]
        CHECK-NOT: func.func
        """,
    )


def test_a_call_in_a_region_is_inlined():
    assert_text(
        normalized(CALL_IN_A_REGION),
        """
        CHECK: stablehlo.reduce
        CHECK-NOT: call
        CHECK-NOT: @plus
        """,
    )


def test_chlo_is_legalised():
    assert_text(
        normalized(CHLO),
        """
        CHECK: func.func @main(%[[X:.*]]: tensor<3xf32>)
        CHECK-NOT: chlo
        CHECK: %[[Y:.*]] = stablehlo.multiply %[[X]], %[[X]]
        CHECK-NEXT: return %[[Y]]
        """,
    )


def test_deprecated_ops_are_legalised_and_what_is_none_stays():
    assert_text(
        normalized(DEPRECATED),
        """
        CHECK: func.func @main(%[[X:.*]]: tensor<2x3xf32>, %[[W:.*]]: tensor<3x4xf32>)
        CHECK-NEXT: stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0]
        CHECK: stablehlo.map
        CHECK-NOT: stablehlo.broadcast %
        CHECK: stablehlo.broadcast_in_dim
        """,
    )


def test_a_composite_is_inlined():
    assert_text(
        normalized(COMPOSITE),
        """
        CHECK: func.func @main(%[[X:.*]]: tensor<3xf32>)
        CHECK-NEXT: %[[Y:.*]] = stablehlo.add %[[X]], %[[X]]
        CHECK-NEXT: return %[[Y]]
        CHECK-NOT: @scale
        """,
    )


def test_dead_ops_stay():
    """They may be all that shows which rows of a Shared value belong to which example."""
    assert_text(normalized(EQUAL_OPS), "CHECK: stablehlo.negate")


@pytest.mark.parametrize("text", MODULES.values(), ids=MODULES.keys())
def test_normalising_twice_changes_nothing(text):
    module = mlir.parse(text)
    normalize(module)
    once = text_of(module)
    normalize(module)
    assert text_of(module) == once
