"""The noise scale along training: both parts averaged apart, of what was drawn with known ones."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from hlo_surgery.estimators import noise_scale_of_sizes

EXAMPLES = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0], [-1.0, 0.25]])
VARIANCE = EXAMPLES.var(0)
SQUARED_MEAN = EXAMPLES.mean(0) ** 2


def drawn(size):
    """Every batch of a size that can be drawn, with replacement: all are as likely."""
    numbers = itertools.product(range(len(EXAMPLES)), repeat=size)
    return np.array([EXAMPLES[list(each)] for each in numbers])


def loss(params, x):
    """The gradients of w and v are the columns of x."""
    return jnp.mean(params["w"] * x[:, 0] + params["v"] * x[:, 1])


PARAMS = {"w": jnp.zeros(()), "v": jnp.zeros(())}


def assert_close(found, variance, squared_mean):
    np.testing.assert_allclose(found.variance, variance, rtol=1e-5)
    np.testing.assert_allclose(found.squared_mean, squared_mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_both_parts_are_unbiased(size):
    each = {"all": hs.noise_scale(), "each": hs.noise_scale("parameter")}
    f = hs.grad(loss, statistics=each)
    batches = jnp.asarray(drawn(size), jnp.float32)
    every = jax.lax.map(lambda x: f(PARAMS, x)[1], batches)
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
    assert_close(ho.noise_scale(state), *averaged(BATCHES, 0.5, [0, 1]))
    of_each = optax.chain(ho.track_noise_scale(0.5, "parameter"), optimizer)
    found = ho.noise_scale(trained(of_each, BATCHES))
    assert_close(found["w"], *averaged(BATCHES, 0.5, [0]))
    assert_close(found["v"], *averaged(BATCHES, 0.5, [1]))
    assert float(found["w"].ratio) == pytest.approx(
        float(found["w"].variance / found["w"].squared_mean)
    )


def masked_loss(params, x, mask):
    """Of no example at all its gradient is NaN."""
    losses = params["w"] * x[:, 0] + params["v"] * x[:, 1]
    return jnp.sum(mask * losses) / jnp.sum(mask)


@pytest.mark.parametrize("counts", [(6, 1), (0, 6), (1, 6, 2), (1, 1), (0, 1)])
def test_microbatches_of_fewer_than_two_are_left_out(counts):
    """Here behind a whole batch that told both parts; they told NaN for ever."""
    tracked = optax.chain(ho.track_noise_scale(0.5), optax.sgd(0.1))
    optimizer = ho.multi_steps(tracked, len(counts))
    step = hs.train_step(
        masked_loss, optimizer, batch_argnums=(1, 2), is_real=lambda params, x, mask: mask
    )
    params, state = jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS)
    for x, count in zip(itertools.cycle(BATCHES), (6,) * len(counts) + counts, strict=False):
        mask = jnp.arange(6) < count
        params, state, _ = step(
            params, state, jnp.asarray(x, jnp.float32), mask.astype(jnp.float32)
        )
    cycle = itertools.cycle(BATCHES)
    whole, parts = ([next(cycle)[:n] for n in sizes] for sizes in ((6,) * len(counts), counts))
    expected = [mean_of_parts(group) for group in (whole, parts)]
    weights = [1.0, 2.0] if any(len(part) > 1 for part in parts) else [1.0, 0.0]
    assert_close(ho.noise_scale(state), *np.average(expected, axis=0, weights=weights))
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(params))


def mean_of_parts(batches):
    """Both parts of each batch of two examples or more, weighted by their number."""
    told = [x for x in batches if len(x) > 1]
    each = [averaged([x], 0.0, [0, 1]) for x in told]
    return np.average(each, axis=0, weights=[len(x) for x in told]) if told else np.zeros(2)
