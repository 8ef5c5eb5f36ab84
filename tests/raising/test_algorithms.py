"""Contractions by an algorithm, which JAX lowers for some platforms only."""

import numpy as np
import pytest

import hlo_surgery as hs

BY_ALGORITHM = """
func.func @main(%w: tensor<4x5xf32>, %h: tensor<3x4xf32>, %l: tensor<3x5xf32>) -> tensor<4x5xf32> {
  %g = stablehlo.dot_general %h, %l, contracting_dims = [0] x [0],
    algorithm = <lhs_precision_type = f32, rhs_precision_type = f32, accumulation_type = f32,
    lhs_component_count = 1, rhs_component_count = 1,
    num_primitive_operations = 1, allow_imprecise_accumulation = false>
    : (tensor<3x4xf32>, tensor<3x5xf32>) -> tensor<4x5xf32>
  %s = stablehlo.add %g, %w : tensor<4x5xf32>
  return %s : tensor<4x5xf32>
}
"""


@pytest.mark.parametrize(
    "statistic", [hs.second_moment(), hs.per_example()], ids=["second_moment", "per_example"]
)
def test_an_algorithm_is_the_highest_precision(statistic):
    module = hs.modules.rewrite_module(
        BY_ALGORITHM, batch=[1, 2], statistics=statistic, gradients=[0], loss_reduction="mean"
    )
    assert "precision = [HIGHEST, HIGHEST]" in module.text()
    w, h, cotangent = (
        np.random.default_rng(0).normal(size=s).astype(np.float32) for s in [(4, 5), (3, 4), (3, 5)]
    )
    gradient, found = module.call(w, h, cotangent)
    examples = 3 * np.einsum("bi,bj->bij", h, cotangent) + w
    expected = examples if statistic == hs.per_example() else np.mean(examples**2, 0)
    np.testing.assert_allclose(gradient, h.T @ cotangent + w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
