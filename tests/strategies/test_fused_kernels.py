"""Kernels of both kinds, interpreted, against float64; what is seen to be elementwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_surgery.passes.strategies.fused import mosaic, triton
from hlo_surgery.passes.strategies.fused.elementwise import of_tiles
from hlo_surgery.passes.strategies.fused.tiles import Parts, Products, norm_of

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
    """The products, a weighted sum, one of cubes, and each example's norm."""
    weight, scale = numbers
    return Parts([own, weight * own, (scale * own) ** 3], [norm_of(scale * own)])


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_sums_and_norms(kernel, shape, kind):
    size, positions, left, right = shape
    draw = np.random.default_rng(0)
    a = jnp.asarray(draw.uniform(-1, 1, (size, positions, left)), kind)
    d = jnp.asarray(draw.uniform(-1, 1, (size, positions, right)), kind)
    numbers = draw.uniform(0.5, 2, (size, 2)).astype(np.float32)
    products = Products(a, d, jnp.asarray(numbers), take, jax.lax.Precision.HIGHEST)
    sums, (norms,) = KERNELS[kernel].summed_products(products, interpret=True)
    own = np.einsum("bpd,bpf->bdf", *(np.asarray(x, np.float64) for x in (a, d)))
    weight, scale = numbers.T[:, :, None, None].astype(np.float64)
    expected = [own.sum(0), (weight * own).sum(0), ((scale * own) ** 3).sum(0)]
    bounds = [positions, 2 * positions, 24 * positions**3]
    for found, value, bound in zip(sums, expected, bounds, strict=True):
        np.testing.assert_allclose(found, value, atol=4 * size * bound * EPS, rtol=0)
    lengths = np.linalg.norm((scale * own).reshape(size, -1), axis=1)
    np.testing.assert_allclose(jnp.linalg.norm(norms, axis=1), lengths, rtol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_infinite_example_leaves_the_others_norms(kernel):
    a, d = np.ones((3, 4, 40), np.float32), np.ones((3, 4, 20), np.float32)
    a[1, 0, 0], d[2, 0, 0] = np.inf, np.nan
    products = Products(jnp.asarray(a), jnp.asarray(d), jnp.ones((3, 2)), take)
    _, (norms,) = KERNELS[kernel].summed_products(products, interpret=True)
    largest = jnp.max(norms, axis=1)
    assert largest[0] == pytest.approx(float(jnp.max(norms[0])))
    assert not np.isfinite(largest[1:]).any()
    assert np.isnan(largest[2])


@pytest.mark.parametrize("exponent", [-126, -100, -60, 0, 60, 100, 124])
def test_norms_over_all_exponents(exponent):
    tile = np.ldexp(np.random.default_rng(0).uniform(1, 1.9, (8, 4)), exponent)
    found = norm_of(jnp.asarray(tile, jnp.float32))
    np.testing.assert_allclose(found[0, 0], np.linalg.norm(tile), rtol=1e-6)


def test_norms_of_nothing_and_of_what_is_not_finite():
    assert norm_of(jnp.zeros((2, 3)))[0, 0] == 0
    assert norm_of(jnp.asarray([[1, jnp.inf]]))[0, 0] == jnp.inf
    assert np.isnan(norm_of(jnp.asarray([[1, jnp.nan]]))[0, 0])


ELEMENTWISE = {
    "square": lambda g: g**2,
    "by cases": lambda g: jnp.where((g > 1) | (g < -2), jnp.sign(g), jnp.sqrt(jnp.abs(g))),
    "a number": lambda g: g * np.float32(3) + jnp.float32(0.5),
    "with itself": lambda g: jax.nn.relu(g) * jax.nn.silu(g),
    "clipped": lambda g: jnp.clip(g, -1, 1),
    "size of the whole": lambda g: g / g.size,
    "a constant": jnp.ones_like,
    "negative powers": lambda g: 1 / (1 + jnp.abs(g) ** -1.5),
    "flags": lambda g: (g > 0).astype(jnp.float32),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_functions_of_tiles_are_those_of_the_whole(name):
    whole = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    tiled = of_tiles(ELEMENTWISE[name], whole.shape)
    assert tiled is not None
    found = tiled(jnp.asarray(whole[2:6, :5]))
    expected = ELEMENTWISE[name](jnp.asarray(whole))[2:6, :5]
    np.testing.assert_allclose(jnp.broadcast_to(found, expected.shape), expected, rtol=1e-6)


MIXING = {
    "over all": lambda g: g / jnp.sum(g),
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
    assert of_tiles(MIXING[name], (8, 6)) is None


def test_numbers_that_are_traced_are_not_seen():
    def traced(scale):
        assert of_tiles(lambda g: scale * g, (8, 6)) is None
        return scale

    jax.jit(traced)(jnp.float32(2))


def test_a_wide_number_is_not_narrowed():
    with jax.enable_x64(True):
        assert of_tiles(lambda g: (g.astype(jnp.float64) ** 2).astype(jnp.float32), (8, 6)) is None
