"""Kernels of both kinds, interpreted, against float64; what is seen to be elementwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_surgery.passes.strategies.einsums import mosaic, triton
from hlo_surgery.passes.strategies.einsums.fused import is_elementwise
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


ELEMENTWISE = {
    "square": lambda g: g**2,
    "by cases": lambda g: jnp.where((g > 1) | (g < -2), jnp.sign(g), jnp.sqrt(jnp.abs(g))),
    "a number": lambda g: g * np.float32(3) + np.float32(0.5),
    "with itself": lambda g: jax.nn.relu(g) * jax.nn.silu(g),
    "clipped": lambda g: jnp.clip(g, -1, 1),
    "a constant": jnp.ones_like,
    "negative powers": lambda g: 1 / (1 + jnp.abs(g) ** -1.5),
    "flags": lambda g: (g > 0).astype(jnp.float32),
}


@pytest.mark.parametrize("shape", [(8, 6), (6,), (3, 1, 8)], ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_seen_to_be_elementwise(name, shape):
    assert is_elementwise(ELEMENTWISE[name], shape)


def of_six_columns(g):
    assert g.shape[1] == 6
    return g


MIXING = {
    "over all": lambda g: g / jnp.sum(g),
    "the size of the whole": lambda g: g / g.size,
    "the length of rows": lambda g: jnp.where(g > g.shape[1], g, 0),
    "of one shape alone": of_six_columns,
    "along an axis": lambda g: jnp.cumsum(g, 0),
    "elsewhere": lambda g: g[::-1],
    "by place": lambda g: g * jnp.arange(6.0),
    "another array": lambda g: g + jnp.asarray(np.ones((8, 6), np.float32)),
    "transposed twice": lambda g: g.T.T,
    "another shape": lambda g: g[:1],
    "random": lambda g: g + jax.random.normal(jax.random.key(0), g.shape),
    "a contraction": lambda g: g @ g.T @ g,
    "on the host": lambda g: jax.pure_callback(np.sin, g, g),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_is_not_seen_to_be_elementwise(name):
    assert not is_elementwise(MIXING[name], (8, 6))
