"""Round trips: what added ops undo is gone, what they do is not, the program's own ops stay."""

import pytest

from hlo_surgery import load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.rewriting.round_trips import drop_round_trips

ADDED = 'loc("hlo_surgery/norms/w/lift")'
TENSOR = "tensor<4x4xf32>"


def left_of(body, location=ADDED):
    """The ops that are left of a body, where all of them have this location."""
    lines = [f"{line} {location}" for line in body.strip().splitlines()]
    code = load(
        f"func.func @main(%x: {TENSOR}) -> {TENSOR} {{\n"
        "%c = stablehlo.constant dense<3.0> : tensor<f32>\n"
        f"%s = stablehlo.constant dense<3.0> : {TENSOR}\n" + "\n".join(lines) + "\n"
        f"return %r : {TENSOR} }}"
    ).code
    drop_round_trips(code)
    mlir.run_passes(code, "cse", "func.func(trivial-dce)")
    names = [op.name for op in mlir.nested_operations(mlir.main_function(code).operation)]
    return [name.removeprefix("stablehlo.") for name in names if name != "func.return"]


GONE = {
    "reshape there and back": """
%a = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<16xf32>
%r = stablehlo.reshape %a : (tensor<16xf32>) -> tensor<4x4xf32>""",
    "a unit dimension in, moved, and out": """
%a = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<1x4x1x4xf32>
%b = stablehlo.transpose %a, dims = [1, 0, 2, 3] : (tensor<1x4x1x4xf32>) -> tensor<4x1x1x4xf32>
%r = stablehlo.reshape %b : (tensor<4x1x1x4xf32>) -> tensor<4x4xf32>""",
    "times and over": """
%a = stablehlo.multiply %s, %x : tensor<4x4xf32>
%r = stablehlo.divide %a, %s : tensor<4x4xf32>""",
    "over and times": """
%a = stablehlo.divide %x, %s : tensor<4x4xf32>
%r = stablehlo.multiply %a, %s : tensor<4x4xf32>""",
    "times one, made of numbers": """
%a = stablehlo.divide %c, %c : tensor<f32>
%b = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
%r = stablehlo.multiply %x, %b : tensor<4x4xf32>""",
    "a broadcast to the same": """
%r = stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<4x4xf32>) -> tensor<4x4xf32>""",
}


@pytest.mark.parametrize("name", GONE)
def test_what_undoes_itself_is_gone(name):
    assert left_of(GONE[name]) == []


@pytest.mark.parametrize("name", GONE)
def test_the_program_keeps_its_own(name):
    assert len(left_of(GONE[name], "")) > 0


KEPT = {
    "a transpose of sizes that are alike": """
%r = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>""",
    "a broadcast that transposes": """
%r = stablehlo.broadcast_in_dim %x, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>""",
    "a transpose between reshapes": """
%a = stablehlo.reshape %x : (tensor<4x4xf32>) -> tensor<2x8xf32>
%b = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x8xf32>) -> tensor<8x2xf32>
%r = stablehlo.reshape %b : (tensor<8x2xf32>) -> tensor<4x4xf32>""",
    "over the scaled": """
%a = stablehlo.multiply %s, %x : tensor<4x4xf32>
%r = stablehlo.divide %s, %a : tensor<4x4xf32>""",
    "times twice": """
%a = stablehlo.multiply %s, %x : tensor<4x4xf32>
%r = stablehlo.multiply %a, %s : tensor<4x4xf32>""",
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_something_stays(name):
    ops = [line.split("stablehlo.")[1].split()[0] for line in KEPT[name].strip().splitlines()]
    assert [op for op in left_of(KEPT[name]) if op != "constant"] == ops
