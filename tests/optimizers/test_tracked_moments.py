"""Moments and the noise scale logged along training: of what was drawn with known ones."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from hlo_surgery.estimators import noise_scale_of_sizes
from tests.optimizers.optimizer_runs import LEAVES, SIZE, drawn, statistics_of, tree_of
from tests.rounded import Rounded, unit_of

B2, STEPS = 0.9, 5
PARAMS = tree_of(LEAVES, jnp.float32)
EXAMPLES = [x[:STEPS] for x in drawn()]
UNIT = unit_of(jnp.float32)
# Of the average of one step: the moment, its square, the two products and the sum; at last the bias
# correction's.
ROUNDINGS = 5 * STEPS + 5


@pytest.fixture(scope="module")
def state():
    optimizer = optax.chain(optax.identity(), ho.track_moments(B2))
    state = optimizer.init(PARAMS)
    for t in range(STEPS):
        found = statistics_of([x[t] for x in EXAMPLES], jnp.float32)
        updates, state = optimizer.update(
            found["gradient"], state, PARAMS, second_moment=found["second_moment"]
        )
        jax.tree.map(np.testing.assert_array_equal, updates, found["gradient"])
    return state


def averages(nu):
    """The bias-corrected averages over the steps, for each parameter."""
    weights = B2 ** np.arange(STEPS - 1, -1, -1)
    each = [np.average(nu(x), axis=0, weights=weights) for x in EXAMPLES]
    return [Rounded(x, ROUNDINGS * UNIT * x, UNIT) for x in each]


ADAM, MICRO = averages(lambda x: x.mean(1) ** 2), averages(lambda x: (x**2).mean(1))
SQUARED = [(adam - micro / SIZE) / (1 - 1 / SIZE) for adam, micro in zip(ADAM, MICRO, strict=True)]
SPREAD = [(micro - adam) / (1 - 1 / SIZE) for adam, micro in zip(ADAM, MICRO, strict=True)]


def known(x, where):
    return Rounded(x.value[where], x.error[where], x.unit)


def ratios(effective):
    """Where any example had a gradient; 0/0 has no ratio."""
    pairs = zip(SQUARED, SPREAD, strict=True)
    return [effective * known(s, v.value > 0) / known(v, v.value > 0) for s, v in pairs]


def assert_medians(found, values):
    """A median moves by no more than the one of its values that moves most; a leaf without values
    has none.
    """
    for leaf, x in zip(jax.tree.leaves(found), values, strict=True):
        if x.value.size:
            assert abs(leaf - np.median(x.value)) <= 2 * x.error.max()
        else:
            assert np.isnan(leaf)


@pytest.mark.parametrize("effective", [None, 1, 2.5])
def test_medians_of_the_estimates(state, effective):
    found = jax.jit(partial(ho.tracked_moments, batch_size=SIZE, effective_batch_size=effective))(
        state
    )
    assert_medians(found["mean_squared"], SQUARED)
    assert_medians(found["variance"], SPREAD)
    each = ratios(SIZE if effective is None else effective)
    assert_medians(found["ratio"], each)
    flat = [
        np.concatenate([np.ravel(getattr(x, part)) for x in each]) for part in ("value", "error")
    ]
    assert_medians(found["ratio_median"], [Rounded(*flat, UNIT)])


EXAMPLES_OF_SCALE = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0], [-1.0, 0.25]])
VARIANCE = EXAMPLES_OF_SCALE.var(0)
SQUARED_MEAN = EXAMPLES_OF_SCALE.mean(0) ** 2


def every_batch(size):
    """Every batch of a size that can be drawn, with replacement: all are as likely."""
    numbers = itertools.product(range(len(EXAMPLES_OF_SCALE)), repeat=size)
    return np.array([EXAMPLES_OF_SCALE[list(each)] for each in numbers])


def loss(params, x):
    """The gradients of w and v are the columns of x."""
    return jnp.mean(params["w"] * x[:, 0] + params["v"] * x[:, 1])


PARAMS_OF_SCALE = {"w": jnp.zeros(()), "v": jnp.zeros(())}


def assert_close(found, variance, squared_mean):
    np.testing.assert_allclose(found.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(found.squared_mean, squared_mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_both_parts_are_unbiased(size):
    each = {"all": hs.noise_scale(), "each": hs.noise_scale("parameter")}
    f = hs.grad(loss, statistics=each)
    batches = jnp.asarray(every_batch(size), jnp.float32)
    every = jax.lax.map(lambda x: f(PARAMS_OF_SCALE, x)[1], batches)
    mean = jax.tree.map(lambda a: a.mean(0), every)
    assert_close(mean["all"], VARIANCE.sum(), SQUARED_MEAN.sum())
    assert_close(mean["each"]["w"], VARIANCE[0], SQUARED_MEAN[0])
    assert_close(mean["each"]["v"], VARIANCE[1], SQUARED_MEAN[1])


@pytest.mark.parametrize("sizes", [(4, 4), (8, 4), (0, 4)])
def test_sizes_that_tell_nothing_are_refused(sizes):
    with pytest.raises(ValueError, match="a larger one"):
        noise_scale_of_sizes(1.0, 1.0, *sizes)


def trained(optimizer, batches):
    """The optimizer's state behind a step for each batch."""
    params, state = jax.tree.map(jnp.copy, PARAMS_OF_SCALE), optimizer.init(PARAMS_OF_SCALE)
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
