"""Kernels of both kinds, interpreted, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_surgery.passes.strategies.einsums import mosaic, triton
from hlo_surgery.passes.strategies.einsums.mosaic import Products

EPS = float(jnp.finfo(jnp.float32).eps)
KERNELS = {"mosaic": mosaic, "triton": triton}
# Whole, ragged in every direction, and several of each.
SHAPES = [(3, 1, 4, 3), (2, 70, 40, 13), (2, 33, 300, 140), (3, 100, 17, 260)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that small arrays have many."""
    for name, length in (("FREE", 128), ("POSITIONS", 32)):
        monkeypatch.setattr(mosaic, name, length)
    for name, length in (("LEFT", 32), ("RIGHT", 16), ("POSITIONS", 16)):
        monkeypatch.setattr(triton, name, length)


def take(own, numbers):
    """The products, a weighted sum, and one of cubes."""
    weight, scale = numbers
    return [own, weight * own, (scale * own) ** 3]


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_sums(kernel, shape, kind):
    size, positions, left, right = shape
    draw = np.random.default_rng(0)
    a = jnp.asarray(draw.uniform(-1, 1, (size, positions, left)), kind)
    d = jnp.asarray(draw.uniform(-1, 1, (size, positions, right)), kind)
    numbers = draw.uniform(0.5, 2, (size, 2)).astype(np.float32)
    products = Products(a, d, jnp.asarray(numbers), take, 3, jax.lax.Precision.HIGHEST)
    sums = KERNELS[kernel].summed_products(products, interpret=True)
    own = np.einsum("bpd,bpf->bdf", *(np.asarray(x, np.float64) for x in (a, d)))
    weight, scale = numbers.T[:, :, None, None].astype(np.float64)
    expected = [own.sum(0), (weight * own).sum(0), ((scale * own) ** 3).sum(0)]
    bounds = [positions, 2 * positions, 24 * positions**3]
    for found, value, bound in zip(sums, expected, bounds, strict=True):
        np.testing.assert_allclose(found, value, atol=4 * size * bound * EPS, rtol=0)
