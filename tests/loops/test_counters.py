"""Counters: they count in their own integer type, where one that leaves it starts at the other end.

The oracle is numpy, whose integers have as many bits, and XLA for whole modules.

This folder alone tests loops over layers, positions and examples.
"""

import numpy as np
import pytest

import hlo_surgery as hs

TYPES = {"i8": np.int8, "i16": np.int16}
ENDLESS = 1000  # rounds of 8 bits repeat long before


def run(kind, start, step, limit):
    """The numbers that the counter has below the limit, as many as there are at most."""
    held = TYPES[kind]
    numbers, taken = np.array([start], held), []
    while numbers[0] < limit and len(taken) < ENDLESS:
        taken.append(int(numbers[0]))
        numbers = numbers + held(step)
    return taken


SUMMED = """
func.func @main(%w: tensor<3x2xf32>, %x: tensor<2x5x3xf32>, %y: tensor<2x5x2xf32>)
    -> (tensor<3x2xf32> {{jax.result_info = "g"}}) {{
  %z = stablehlo.constant dense<0> : tensor<{kind}>
  %one = stablehlo.constant dense<1> : tensor<{kind}>
  %step = stablehlo.constant dense<100> : tensor<{kind}>
  %n = stablehlo.constant dense<120> : tensor<{kind}>
  %zero = stablehlo.constant dense<0.0> : tensor<3x2xf32>
  %r:2 = stablehlo.while(%i = %z, %c = %zero) : tensor<{kind}>, tensor<3x2xf32>
   cond {{ %p = stablehlo.compare LT, %i, %n : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
          stablehlo.return %p : tensor<i1> }}
   do {{   %k = stablehlo.minimum %i, %one : tensor<{kind}>
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
    for number in run(kind, 0, 100, 120):
        times[min(max(number, 0), 1)] += 1
    assert (times == {0: 1, 1: 1}) == (kind == "i16")
    each = np.einsum("t,tbij->bij", np.array([*times.values()]), residual_products(w, x, y))
    np.testing.assert_allclose(gradient, each.sum(0), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(rows, each, rtol=1e-5, atol=1e-4)
