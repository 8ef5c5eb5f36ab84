"""Constants, prefix sums and called functions: evaluated and taken as XLA has them.

This folder alone tests what is done to a module before: programs for each device, constants, folded
sums.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import sum_windows


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


@pytest.mark.first(2)
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
