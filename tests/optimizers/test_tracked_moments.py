"""The moments logged along training: estimates of averages, against examples in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho
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
    found = jax.jit(partial(ho.moments, batch_size=SIZE, effective_batch_size=effective))(state)
    assert_medians(found["mean_squared"], SQUARED)
    assert_medians(found["variance"], SPREAD)
    each = ratios(SIZE if effective is None else effective)
    assert_medians(found["ratio"], each)
    flat = [
        np.concatenate([np.ravel(getattr(x, part)) for x in each]) for part in ("value", "error")
    ]
    assert_medians(found["ratio_median"], [Rounded(*flat, UNIT)])


def test_batches_of_many_sizes_give_unbiased_moments():
    rng, mu, sigma = np.random.default_rng(0), 2.0, 3.0
    optimizer = ho.track_moments(0.9)
    params = jnp.zeros(100_000)
    state = optimizer.init(params)
    for size in [1, 8, 2, 1, 0, 3, 1, 5, 1]:
        each = rng.normal(mu, sigma, (size, len(params)))
        mean, squares = (jnp.asarray(x.sum(0) / max(size, 1), jnp.float32) for x in (each, each**2))
        _, state = optimizer.update(mean, state, second_moment=squares, batch_size=size)
    found = ho.moments(state)
    assert found["mean_squared_mean"] == pytest.approx(mu**2, rel=0.05)
    assert found["variance_mean"] == pytest.approx(sigma**2, rel=0.05)
    traced = jax.jit(ho.moments)(state)
    assert traced["variance_mean"] == pytest.approx(float(found["variance_mean"]), rel=1e-6)
