"""The paper's estimators, against float64 NumPy, exact enumeration and sampling."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hlo_surgery import estimators

EPS = float(np.finfo(np.float32).eps)


def nus(g):
    """nu_adam and nu_micro of gradients [..., B], in float64."""
    return g.mean(axis=-1) ** 2, (g**2).mean(axis=-1)


GRADIENTS = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40)


@given(GRADIENTS)
def test_variance_is_the_sample_variance(gradients):
    g = np.array(gradients)
    adam, micro = nus(g)
    # Both moments are rounded to float32: errors relative to nu_micro, times 1 / (1 - 1/B) <= 2.
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
