"""The paper's estimators, against float64 NumPy, exact enumeration and sampling."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo_surgery import estimators

EPS = float(np.finfo(np.float32).eps)


def nus(g):
    """nu_adam and nu_micro of gradients [..., B], in float64."""
    return g.mean(axis=-1) ** 2, (g**2).mean(axis=-1)


@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_expectations_over_every_batch_of_a_die_are_exact(batch_size):
    faces = np.array([-1.0, 0.5, 3.0])
    batches = np.array(list(itertools.product(faces, repeat=batch_size)))
    with jax.enable_x64(True):
        squared = estimators.mean_squared(*nus(batches), batch_size)
        spread = estimators.variance(*nus(batches), batch_size)
        np.testing.assert_allclose(
            [squared.mean(), spread.mean()], [faces.mean() ** 2, faces.var()], rtol=1e-13
        )


GRADIENTS = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40)


@given(GRADIENTS)
def test_variance_is_the_sample_variance(gradients):
    g = np.array(gradients)
    adam, micro = nus(g)
    # Both moments are rounded to float32, then subtracted: errors relative to nu_micro, times 1 /
    # (1 - 1/B) <= 2.
    atol = 8 * EPS * micro + 1e-35
    np.testing.assert_allclose(
        estimators.variance(adam, micro, g.size), g.var(ddof=1), rtol=0, atol=atol
    )
    expected = adam - g.var(ddof=1) / g.size
    np.testing.assert_allclose(
        estimators.mean_squared(adam, micro, g.size), expected, rtol=0, atol=atol
    )


def reference_ema(values, decay):
    average = np.zeros_like(values[0])
    for value in values:
        average = decay * average + (1 - decay) * value
    return average / (1 - decay ** len(values))


@given(st.sampled_from([0.0, 0.5, 0.95, 0.999, 0.99999]), st.integers(1, 60))
def test_ema_is_the_bias_corrected_average(decay, steps):
    values = np.random.default_rng(steps).uniform(0.5, 1.5, (steps, 3)).astype(np.float32)

    @jax.jit
    def run(values):
        def step(state, value):
            return estimators.ema_update(state, {"w": value, "b": value[0]}, decay), None

        state, _ = jax.lax.scan(
            step, estimators.ema_init({"w": values[0], "b": values[0, 0]}), values
        )
        return estimators.ema_value(state)

    found, expected = run(values), reference_ema(values.astype(np.float64), decay)
    # Every step rounds both the average and its weight a few times.
    np.testing.assert_allclose(found["w"], expected, rtol=4 * EPS * (steps + 2))
    np.testing.assert_allclose(found["b"], expected[0], rtol=4 * EPS * (steps + 2))


def test_ratio_of_emas_equals_numpy():
    rng, decay, batch_size = np.random.default_rng(4), 0.95, 8
    pairs = [nus(rng.normal(1.0, 1.0, (6, batch_size))) for _ in range(40)]
    state = estimators.ema_init(pairs[0])
    update = jax.jit(lambda state, pair: estimators.ema_update(state, pair, decay))
    for pair in pairs:
        state = update(state, pair)
    adam, micro = (reference_ema([pair[i] for pair in pairs], decay) for i in (0, 1))
    expected = batch_size * (adam - micro / batch_size) / (micro - adam)
    np.testing.assert_allclose(
        estimators.moment_ratio(*estimators.ema_value(state), batch_size), expected, rtol=1e-4
    )


def test_medians():
    rng = np.random.default_rng(5)
    tree = {
        "w": rng.normal(size=(4, 5)).astype(np.float32),
        "b": (rng.normal(size=7).astype(np.float32),),
    }
    tree["w"][0] = np.nan
    medians = jax.jit(estimators.leaf_medians)(tree)
    assert jax.tree.structure(medians) == jax.tree.structure(tree)
    np.testing.assert_allclose(medians["w"], np.median(tree["w"][1:]), rtol=EPS)
    np.testing.assert_allclose(medians["b"][0], np.median(tree["b"][0]), rtol=EPS)
    every = np.concatenate([tree["w"][1:].ravel(), tree["b"][0]])
    np.testing.assert_allclose(jax.jit(estimators.global_median)(tree), np.median(every), rtol=EPS)


def normal_mass(low, high):
    """The integral of the standard normal density, by Simpson's rule in float64."""
    x = np.linspace(low, high, 4001)
    weights = np.ones(4001)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return (weights * np.exp(-(x**2) / 2)).sum() * (high - low) / 4000 / 3 / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("r", [1e-30, 1e-6, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 10.0, 16.0])
def test_sign_snr_equals_numerical_integration(r):
    r = float(np.float32(r))
    above, below = 0.5 + normal_mass(0, r), normal_mass(r, r + 12)
    expected = 2 * normal_mass(0, r) / (2 * math.sqrt(above * below))
    # The density is exp(-r**2 / 2): float32 leaves that exponent an error of r**2 / 2 roundings.
    rtol = EPS * (4 + r**2 / 2)
    np.testing.assert_allclose(estimators.sign_snr([r, -r]), [expected, expected], rtol=rtol)


def test_limits_of_sign_snr():
    np.testing.assert_allclose(
        float(estimators.sign_snr(1e-4)) / 1e-4, math.sqrt(2 / math.pi), rtol=1e-6
    )
    large = (math.pi / 8) ** 0.25 * math.sqrt(12.0) * math.exp(12.0**2 / 4)
    np.testing.assert_allclose(estimators.sign_snr(12.0), large, rtol=1 / 12.0**2)
    assert estimators.sign_snr(0.0) == 0
    assert estimators.sign_snr(1.18) < 1.18
    assert estimators.sign_snr(1.19) > 1.19


@pytest.mark.parametrize("effective", [0, -1.0])
def test_an_effective_batch_size_must_be_positive(effective):
    with pytest.raises(ValueError, match="effective_batch_size must be positive"):
        estimators.moment_ratio(1.0, 2.0, 4, effective)


def standard_error_of_ratio(moments, batch_size, mu, sigma):
    """Of mean mu2 / mean sigma2, whose error to first order is the mean of (mu2 - ratio * sigma2) /
    sigma**2.
    """
    squared = np.asarray(estimators.mean_squared(*moments, batch_size), np.float64)
    spread = np.asarray(estimators.variance(*moments, batch_size), np.float64)
    errors = (squared - mu**2 / sigma**2 * spread) / sigma**2
    return errors.std() / math.sqrt(errors.size)


@pytest.mark.parametrize("r", [0.0, 0.05, 0.5, 1.5])
def test_sampled_sign_snr_agrees_with_the_closed_form(r):
    count = 400_000
    mean = np.sign(np.random.default_rng(6).normal(r, 1.0, count)).mean()
    # The standard error of mean is sqrt((1 - mean**2) / count), and the SNR changes by (1 -
    # mean**2)**-1.5 of that.
    error = 1 / ((1 - mean**2) * math.sqrt(count))
    assert abs(float(estimators.sampled_sign_snr(mean)) - float(estimators.sign_snr(r))) < 5 * error


@pytest.mark.parametrize("draw", ["normal", "zeros and signs"])
def test_gradient_snr_of_averages_approaches_the_true_snr(draw):
    rng, shape = np.random.default_rng(7), (100_000, 8)
    if draw == "normal":
        g, mu, sigma = rng.normal(0.4, 1.0, shape), 0.4, 1.0
    else:
        g, mu, sigma = (
            rng.choice([-1.0, 0.0, 1.0], shape, p=[0.1, 0.5, 0.4]),
            0.3,
            math.sqrt(0.5 - 0.09),
        )
    moments = nus(g)
    found = float(estimators.gradient_snr(*(nu.mean() for nu in moments), 8))
    assert abs(found**2 - (mu / sigma) ** 2) < 5 * standard_error_of_ratio(moments, 8, mu, sigma)
