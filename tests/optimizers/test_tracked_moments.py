"""Moments and the noise scale logged along training: of what was drawn with known ones."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho


def loss(params, x):
    """The gradients of w and v are the columns of x."""
    return jnp.mean(params["w"] * x[:, 0] + params["v"] * x[:, 1])


PARAMS = {"w": jnp.zeros(()), "v": jnp.zeros(())}


def assert_close(found, variance, squared_mean):
    np.testing.assert_allclose(found.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(found.squared_mean, squared_mean, rtol=1e-5, atol=1e-6)


def trained(optimizer, batches):
    """The optimizer's state behind a step for each batch."""
    params, state = jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS)
    step = hs.train_step(loss, optimizer)
    for x in batches:
        params, state, _ = step(params, state, jnp.asarray(x, jnp.float32))
    return state


def averaged(batches, decay, columns):
    """The bias-corrected average of each part over the steps, by numpy."""
    weights = decay ** np.arange(len(batches) - 1, -1, -1)
    variance = [x[:, columns].var(0, ddof=1).sum() for x in batches]
    means = [(x[:, columns].mean(0) ** 2).sum() for x in batches]
    signal = [m - v / len(x) for m, v, x in zip(means, variance, batches, strict=True)]
    return np.average(variance, weights=weights), np.average(signal, weights=weights)


BATCHES = np.random.default_rng(0).normal(0.5, 1, (4, 6, 2))


@pytest.mark.parametrize("optimizer", [optax.adam(0.1), ho.micro_adam(0.1)])
def test_averages_along_training(optimizer):
    state = trained(optax.chain(ho.track_noise_scale(0.5), optimizer), BATCHES)
    assert_close(ho.tracked_noise_scale(state), *averaged(BATCHES, 0.5, [0, 1]))
    of_each = optax.chain(ho.track_noise_scale(0.5, "parameter"), optimizer)
    found = ho.tracked_noise_scale(trained(of_each, BATCHES))
    assert_close(found["w"], *averaged(BATCHES, 0.5, [0]))
    assert_close(found["v"], *averaged(BATCHES, 0.5, [1]))
    assert float(found["w"].ratio) == pytest.approx(
        float(found["w"].variance / found["w"].squared_mean)
    )


def test_moments_along_training():
    state = trained(optax.chain(ho.track_moments(0.5), optax.adam(0.1)), BATCHES)
    variance, squared_mean = averaged(BATCHES, 0.5, [0, 1])
    found = ho.tracked_moments(state)
    np.testing.assert_allclose(found["variance_mean"], variance / 2, rtol=1e-5)
    np.testing.assert_allclose(found["mean_squared_mean"], squared_mean / 2, rtol=1e-5)
