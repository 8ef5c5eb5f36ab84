"""Powers of two: products with them are exact wherever they are normal numbers, as numpy's are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_surgery.passes.terms.scaling import from_scaled, times_power_of_two

DTYPES = [np.float32, np.float64]


def numbers(dtype):
    """Normal numbers of every exponent, and their exponents."""
    limits = np.finfo(dtype)
    exponents = np.arange(limits.minexp, limits.maxexp)
    return np.ldexp(np.array(1.7, dtype), exponents), exponents


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_exact_where_they_are_normal_numbers(dtype):
    x, exponents = numbers(dtype)
    most = 2 * (np.finfo(dtype).maxexp - 8)
    by = np.arange(-most, most + 1)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        found = jax.jit(times_power_of_two)(x[:, None], by[None].astype(dtype))
        wanted = np.ldexp(x[:, None], by[None])
    within = (exponents[:, None] + by >= exponents[0]) & (exponents[:, None] + by <= exponents[-1])
    np.testing.assert_array_equal(np.asarray(found)[within], wanted[within])
    assert within.any(0).sum() > len(exponents) / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_parts_reach_beyond_the_range_of_one_number(dtype):
    limits = np.finfo(dtype)
    exponents = np.arange(2 * limits.minexp, 2 * limits.maxexp).astype(dtype)
    with jax.enable_x64(True):
        found = jax.jit(from_scaled)((jnp.ones_like(exponents), exponents))
    with np.errstate(over="ignore"):
        powers = np.ldexp(np.ones((), dtype), exponents.astype(int))
    wanted = np.where(exponents < limits.minexp, 0, powers)
    np.testing.assert_array_equal(found, wanted)
