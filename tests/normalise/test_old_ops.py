"""Ops of older dumps: a gradient that is made of them, against one example's at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

GRADIENT = """
func.func @main(%w: tensor<3x2xf32>, %x: tensor<5x3xf32>) -> tensor<3x2xf32> {
  %h = stablehlo.dot %x, %w : (tensor<5x3xf32>, tensor<3x2xf32>) -> tensor<5x2xf32>
  %t = stablehlo.tanh %h : tensor<5x2xf32>
  %xt = stablehlo.transpose %x, dims = [1, 0] : (tensor<5x3xf32>) -> tensor<3x5xf32>
  %g = stablehlo.dot %xt, %t : (tensor<3x5xf32>, tensor<5x2xf32>) -> tensor<3x2xf32>
  return %g : tensor<3x2xf32>
}
"""
STATISTICS = {"squares": hs.second_moment(), "norms": hs.norms(), "sines": hs.mean_of(jnp.sin)}


def loss(w, x):
    return jnp.sum(jnp.log(jnp.cosh(x @ w)))


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_dot(strategy):
    w, x = jnp.sin(jnp.arange(6.0)).reshape(3, 2), jnp.cos(jnp.arange(15.0)).reshape(5, 3)
    own = jnp.stack([jax.grad(loss)(w, x[b : b + 1]) for b in range(5)])
    rewritten = hs.rewrite_module(
        GRADIENT,
        batch={1: 0},
        gradients=[0],
        statistics=STATISTICS,
        loss_reduction="sum",
        strategy=strategy,
    )
    gradient, squares, norms, sines = rewritten.call(w, x)
    np.testing.assert_allclose(gradient, own.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(squares, (own**2).mean(0), rtol=1e-5)
    np.testing.assert_allclose(norms, jnp.sqrt((own**2).sum((1, 2))), rtol=1e-5)
    np.testing.assert_allclose(sines, jnp.sin(own).mean(0), rtol=1e-5, atol=1e-6)
