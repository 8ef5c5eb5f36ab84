"""What is made alike from the same, by broadcasts before or behind; and what is not."""

import pytest

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.owners.same_values import are_same

SPREAD = "stablehlo.broadcast_in_dim"
TO = "(tensor<3xf32>) -> tensor<3x3xf32>"
SAME = {
    "the same op": (
        "%a = stablehlo.tanh %m : tensor<3x3xf32>",
        "%b = stablehlo.tanh %m : tensor<3x3xf32>",
    ),
    "a broadcast before and behind": (
        f"%x = {SPREAD} %v, dims = [1] : {TO}\n%a = stablehlo.tanh %x : tensor<3x3xf32>",
        f"%y = stablehlo.tanh %v : tensor<3xf32>\n%b = {SPREAD} %y, dims = [1] : {TO}",
    ),
    "broadcasts behind": (
        f"%x = stablehlo.tanh %v : tensor<3xf32>\n%a = {SPREAD} %x, dims = [0] : {TO}",
        f"%y = stablehlo.tanh %v : tensor<3xf32>\n%b = {SPREAD} %y, dims = [0] : {TO}",
    ),
}
DRAWN = """
%l{0} = stablehlo.constant dense<0.0> : tensor<f32>
%h{0} = stablehlo.constant dense<1.0> : tensor<f32>
%s{0} = stablehlo.constant dense<3> : tensor<2xi64>
%{0} = stablehlo.rng %l{0}, %h{0}, %s{0}, distribution = UNIFORM :
  (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<3x3xf32>
"""
OTHER = {
    "numbers drawn twice": (DRAWN.format("a"), DRAWN.format("b")),
    "along another dimension": (
        f"%a = {SPREAD} %v, dims = [0] : {TO}",
        f"%b = {SPREAD} %v, dims = [1] : {TO}",
    ),
    "transposed": (
        f"%a = {SPREAD} %m, dims = [0, 1] : (tensor<3x3xf32>) -> tensor<3x3xf32>",
        f"%b = {SPREAD} %m, dims = [1, 0] : (tensor<3x3xf32>) -> tensor<3x3xf32>",
    ),
    "a move of a broadcast": (
        f"%x = {SPREAD} %v, dims = [0] : {TO}\n"
        "%a = stablehlo.transpose %x, dims = [1, 0] : (tensor<3x3xf32>) -> tensor<3x3xf32>",
        f"%b = {SPREAD} %v, dims = [0] : {TO}",
    ),
    "numbers of a dimension, and of another": (
        "%a = stablehlo.iota dim = 0 : tensor<3x3xf32>",
        f"%y = stablehlo.iota dim = 0 : tensor<3xf32>\n%b = {SPREAD} %y, dims = [1] : {TO}",
    ),
    "another op": (
        "%a = stablehlo.tanh %m : tensor<3x3xf32>",
        "%b = stablehlo.sine %m : tensor<3x3xf32>",
    ),
    "of another kind of numbers": (
        f"%x = {SPREAD} %v, dims = [0] : {TO}\n"
        "%i = stablehlo.convert %x : (tensor<3x3xf32>) -> tensor<3x3xi32>\n"
        "%a = stablehlo.convert %i : (tensor<3x3xi32>) -> tensor<3x3xf32>",
        "%j = stablehlo.convert %v : (tensor<3xf32>) -> tensor<3xi8>\n"
        "%y = stablehlo.convert %j : (tensor<3xi8>) -> tensor<3xf32>\n"
        f"%b = {SPREAD} %y, dims = [0] : {TO}",
    ),
}


def is_same(lines):
    made = "\n".join(lines)
    code = mlir.parse(
        "func.func @main(%m: tensor<3x3xf32>, %v: tensor<3xf32>)"
        f" -> (tensor<3x3xf32>, tensor<3x3xf32>) {{\n{made}\n"
        "return %a, %b : tensor<3x3xf32>, tensor<3x3xf32>\n}"
    )
    block = mlir.body(mlir.main_function(code))
    return are_same(*mlir.operands(mlir.return_operation(block)), {})


@pytest.mark.parametrize("name", SAME)
def test_what_is_made_alike(name):
    assert is_same(SAME[name])


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not(name):
    assert not is_same(OTHER[name])
