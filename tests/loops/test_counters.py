"""Counters: they count in their own integer type, where one that leaves it starts at the other end.

The oracle is numpy, whose integers have as many bits, and XLA for whole modules.
"""

import itertools

import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.dataflow.numbers import counter_values
from hlo_surgery.passes.ir import mlir

TYPES = {"i8": np.int8, "ui8": np.uint8, "i16": np.int16, "i32": np.int32, "ui64": np.uint64}
COMPARES = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "NE": np.not_equal,
}
ENDLESS = 1000  # rounds of 8 bits repeat long before
COUNTED = """
func.func @main() -> tensor<{kind}> {{
  %start = stablehlo.constant dense<{start}> : tensor<{kind}>
  %step = stablehlo.constant dense<{step}> : tensor<{kind}>
  %limit = stablehlo.constant dense<{limit}> : tensor<{kind}>
  %r = stablehlo.while(%i = %start) : tensor<{kind}>
   cond {{ %p = stablehlo.compare {direction}, %i, %limit : (tensor<{kind}>, tensor<{kind}>)
            -> tensor<i1>
          stablehlo.return %p : tensor<i1> }}
   do {{   %j = stablehlo.{op} %i, %step : tensor<{kind}>
          stablehlo.return %j : tensor<{kind}> }}
  return %r : tensor<{kind}>
}}"""


def loops_in(code):
    return [op for op in mlir.nested_operations(code.operation) if op.name == "stablehlo.while"]


def counted(kind, direction, start, step, limit, op="add"):
    """The numbers of the one counter of such a loop; None where its rounds are not known."""
    row = {"kind": kind, "direction": direction, "start": start, "step": step, "limit": limit}
    row["op"] = op
    code = mlir.parse(COUNTED.format(**row))
    (loop,) = loops_in(code)
    counters = counter_values(loop)
    return None if counters is None else next(iter(counters.values())).tolist()


def run(kind, direction, start, step, limit, op="add"):
    """The numbers that the counter has, as many as there are at most."""
    held = TYPES[kind]
    numbers, limit = np.array([start], held), held(limit)
    taken = []
    while COMPARES[direction](numbers[0], limit) and len(taken) < ENDLESS:
        taken.append(int(numbers[0]))
        numbers = numbers + held(step) if op == "add" else numbers - held(step)
    return taken


@pytest.mark.parametrize("direction", COMPARES)
@pytest.mark.parametrize("kind", ["i8", "ui8"])
@pytest.mark.parametrize("op", ["add", "subtract"])
def test_numbers_are_those_of_the_type(op, kind, direction):
    low, high = (int(n) for n in (np.iinfo(TYPES[kind]).min, np.iinfo(TYPES[kind]).max))
    starts = sorted({low, low + 5, 0, 7, high - 27, high})
    steps = [n for n in (-100, -3, -1, 0, 1, 3, 100) if n >= low]
    limits = sorted({low, low + 1, 0, 10, 120, high - 1, high})
    known = 0
    for start, step, limit in itertools.product(starts, steps, limits):
        row = (kind, direction, start, step, limit, op)
        numbers = counted(*row)
        known += numbers is not None
        if numbers is not None:
            assert numbers == run(*row), row
    assert known > 20


SUMMED = """
func.func @main(%w: tensor<3x2xf32>, %x: tensor<2x5x3xf32>, %y: tensor<2x5x2xf32>)
    -> (tensor<3x2xf32> {{jax.result_info = "g"}}) {{
  %z = stablehlo.constant dense<0> : tensor<{kind}>
  %step = stablehlo.constant dense<100> : tensor<{kind}>
  %n = stablehlo.constant dense<120> : tensor<{kind}>
  %zero = stablehlo.constant dense<0.0> : tensor<3x2xf32>
  %r:2 = stablehlo.while(%i = %z, %c = %zero) : tensor<{kind}>, tensor<3x2xf32>
   cond {{ %p = stablehlo.compare LT, %i, %n : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
          stablehlo.return %p : tensor<i1> }}
   do {{   %k = stablehlo.divide %i, %step : tensor<{kind}>
          %s = stablehlo.dynamic_slice %x, %k, %z, %z, sizes = [1, 5, 3] : (tensor<2x5x3xf32>,
            tensor<{kind}>, tensor<{kind}>, tensor<{kind}>) -> tensor<1x5x3xf32>
          %v = stablehlo.reshape %s : (tensor<1x5x3xf32>) -> tensor<5x3xf32>
          %t = stablehlo.dynamic_slice %y, %k, %z, %z, sizes = [1, 5, 2] : (tensor<2x5x2xf32>,
            tensor<{kind}>, tensor<{kind}>, tensor<{kind}>) -> tensor<1x5x2xf32>
          %u = stablehlo.reshape %t : (tensor<1x5x2xf32>) -> tensor<5x2xf32>
          %h = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] :
            (tensor<5x3xf32>, tensor<3x2xf32>) -> tensor<5x2xf32>
          %l = stablehlo.subtract %h, %u : tensor<5x2xf32>
          %g = stablehlo.dot_general %v, %l, contracting_dims = [0] x [0] :
            (tensor<5x3xf32>, tensor<5x2xf32>) -> tensor<3x2xf32>
          %a = stablehlo.add %c, %g : tensor<3x2xf32>
          %j = stablehlo.add %i, %step : tensor<{kind}>
          stablehlo.return %j, %a : tensor<{kind}>, tensor<3x2xf32> }}
  return %r#1 : tensor<3x2xf32>
}}"""


def residual_products(w, x, y):
    """What each of the five examples adds in one round over both slices: [2, 5, 3, 2]."""
    return np.einsum("tbi,tbj->tbij", x, x @ w - y)


@pytest.mark.parametrize("kind", ["i8", "i16"])
def test_a_loop_is_hoisted_for_the_rounds_that_it_has(kind):
    """With 8 bits the counter is 0, 100, -56, 44, ..., and the loop sums more than two slices."""
    rng = np.random.default_rng(0)
    w, x, y = (rng.normal(size=s).astype(np.float32) for s in ((3, 2), (2, 5, 3), (2, 5, 2)))
    asked = {"batch": {1: 1, 2: 1}, "gradients": [0], "loss_reduction": "sum"}
    rewritten = hs.modules.rewrite_module(
        SUMMED.format(kind=kind), statistics=hs.per_example(), **asked
    )
    gradient, rows = rewritten.call(w, x, y)
    times = {0: 0, 1: 0}
    for number in run(kind, "LT", 0, 100, 120):
        times[min(max(int(number / 100), 0), 1)] += 1
    assert (times == {0: 1, 1: 1}) == (kind == "i16")
    each = np.einsum("t,tbij->bij", np.array([*times.values()]), residual_products(w, x, y))
    np.testing.assert_allclose(gradient, each.sum(0), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(rows, each, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "row",
    [
        ("i8", "LT", 0, 100, 120),
        ("i8", "LE", 0, 1, 127),
        ("i8", "GT", 0, -100, -120),
        ("i8", "GE", 0, -1, -128),
        ("ui8", "GE", 9, 255, 0),
        ("ui8", "LT", 0, 200, 250),
        ("i16", "LT", 0, 30000, 32000),
        ("i32", "LT", 0, 2000000000, 2100000000),
        ("i8", "NE", 1, 1, 0),
        ("i8", "LT", 0, -128, 100, "subtract"),
        ("ui8", "GE", 4, 1, 0, "subtract"),
    ],
)
def test_a_counter_that_leaves_its_type_is_not_known(row):
    assert counted(*row) is None
    assert len(run(*row)) not in (0, 1)
