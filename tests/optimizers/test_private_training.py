"""DP-SGD: its steps without noise, the noise's distribution, and that every step draws anew."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_references import private_adam, private_sgd
from tests.optimizers.optimizer_runs import MAX_NORM, assert_within, drawn, followed, trained
from tests.training.training_runs import SIZE

MULTIPLIER, COUNT = 1.3, 40_000
# Of about normal statistics one in 1.7 million is further off, and the seeds are fixed.
STANDARD_ERRORS = 5
MANY = {name: jnp.zeros((200, COUNT // 200)) for name in ("a", "b")}


@pytest.mark.first(1)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("momentum", [None, 0.8])
def test_without_noise_as_the_reference(momentum, dtype):
    with jax.enable_x64(dtype == jnp.float64):
        found = trained(ho.dp_sgd(0.1, MAX_NORM, 0.0, seed=0, momentum=momentum), drawn(), dtype)
    assert_within(
        found, followed(private_sgd(0.1, MAX_NORM, momentum or 0.0), drawn(), dtype), dtype
    )


def test_adam_without_noise_as_the_reference():
    options = {"b1": 0.8, "b2": 0.95, "eps": 1e-4, "eps_root": 1e-6, "weight_decay": 0.01}
    found = trained(ho.dp_adam(0.01, MAX_NORM, 0.0, seed=0, **options), drawn(10), jnp.float32)
    reference = private_adam(0.01, MAX_NORM, **options)
    assert_within(found, followed(reference, drawn(10), jnp.float32), jnp.float32)


def noise(steps, seed=0, every_k=1, max_norm=0.7):
    """Each step's noise on many parameters: updates of rate 1 where the clipped mean is zero."""
    optimizer = ho.multi_steps(ho.dp_sgd(1.0, max_norm, MULTIPLIER, seed), every_k)
    update = jax.jit(partial(optimizer.update, batch_size=SIZE))
    state, found = optimizer.init(MANY), []
    for t in range(steps * every_k):
        updates, state = update(MANY, state, MANY, clipped_mean=MANY)
        if t % every_k == every_k - 1:
            found.append(np.float64(ravel_pytree(updates)[0]))
    return found


def assert_normal(sample, deviation):
    """Mean, variance, fourth moment: standard errors 1, sqrt(2), sqrt(96) over sqrt(size)."""
    scaled, error = sample / deviation, STANDARD_ERRORS / np.sqrt(sample.size)
    assert abs(scaled.mean()) < error
    assert abs((scaled**2).mean() - 1) < np.sqrt(2) * error
    assert abs((scaled**4).mean() - 3) < np.sqrt(96) * error


@pytest.mark.parametrize(("max_norm", "every_k"), [(0.7, 1), (20.0, 1), (0.7, 3)])
def test_the_noise_is_normal_of_the_deviation_promised(max_norm, every_k):
    """Over microbatches it is drawn once, for all of their examples."""
    (sample,) = noise(1, max_norm=max_norm, every_k=every_k)
    assert_normal(sample, MULTIPLIER * max_norm / (every_k * SIZE))


def test_steps_parameters_and_seeds_have_noise_of_their_own():
    """Correlations of independent normal samples have the standard error 1 / sqrt(size)."""
    samples = [half for seed in (0, 1) for step in noise(3, seed) for half in np.split(step, 2)]
    correlations = np.corrcoef(samples)[np.triu_indices(len(samples), 1)]
    assert np.abs(correlations).max() < STANDARD_ERRORS / np.sqrt(COUNT)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_noise_and_clipped_sum_are_divided_by_the_expected_batch_size(count):
    """Whatever number of examples a batch of Poisson sampling happens to have."""
    private = ho.private_gradient(0.7, MULTIPLIER, 0, expected_batch_size=32)
    sums = jax.tree.map(lambda x: x + 5.0, MANY)
    means = jax.tree.map(lambda x: x / max(count, 1) if count else 0 * x, sums)
    found, _ = private.update(means, private.init(MANY), clipped_mean=means, batch_size=count)
    sample = np.float64(ravel_pytree(found)[0])
    assert_normal(sample - (5.0 / 32 if count else 0.0), MULTIPLIER * 0.7 / 32)


def test_poisson_sampling_with_padding_divides_by_no_number_of_the_data():
    """A step without noise: the sum of the real examples' clipped gradients over the expected B."""

    def loss(w, batch):
        return jnp.sum(batch["real"] * jnp.tanh(batch["x"] @ w))

    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    batch = {"x": x, "real": np.array([1, 1, 0, 1, 0, 0], np.float32)}
    optimizer = ho.dp_sgd(1.0, max_norm=0.5, noise_multiplier=0.0, seed=0, expected_batch_size=4)
    step = hs.train_step(loss, optimizer, loss_reduction="sum", is_real=lambda w, b: b["real"])
    w = jnp.array([0.3, -0.2, 0.1])
    start = np.asarray(w)
    each = (1 - np.tanh(x @ start) ** 2)[:, None] * x
    norms = np.linalg.norm(each, axis=1)
    clipped = (each * np.minimum(1, 0.5 / norms)[:, None])[batch["real"] == 1]
    moved, _, _ = step(w, optimizer.init(w), batch)
    np.testing.assert_allclose(moved, start - clipped.sum(0) / 4, rtol=1e-5)


@pytest.mark.parametrize("make", [ho.dp_sgd, ho.dp_adam])
def test_an_example_that_is_not_finite_moves_nothing(make):
    optimizer, w = make(1.0, 0.5, 0.0, seed=0), jnp.ones(3)
    step = hs.train_step(lambda w, x: jnp.mean(jnp.tanh(x @ w)), optimizer)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    moved = [
        step(jnp.copy(w), optimizer.init(w), jnp.asarray(x).at[1].set(bad))[0]
        for bad in (jnp.nan, jnp.inf, 0.0)
    ]
    assert (moved[2] != w).all()
    np.testing.assert_array_equal(moved[0], moved[2])
    np.testing.assert_array_equal(moved[1], moved[2])


STILL, FROZEN, TRAINED = optax.set_to_zero(), {"w": True, "b": False}, {"w": False, "b": True}
PLACES = {
    "multi_transform": lambda optimizer: optax.multi_transform(
        {"frozen": STILL, "trained": optimizer}, {"w": "frozen", "b": "trained"}
    ),
    "behind": lambda optimizer: optax.chain(optimizer, optax.masked(STILL, FROZEN)),
    "masked": lambda optimizer: optax.chain(
        optax.masked(STILL, FROZEN), optax.masked(optimizer, TRAINED)
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_is_frozen_stays(place):
    """Whatever noise the others have."""
    optimizer = place(ho.dp_sgd(0.1, 1.0, 1.0, seed=0))
    gradient = {"w": jnp.full((3, 2), 0.3), "b": jnp.zeros(2)}
    given = {"grad": gradient, "clipped_mean": gradient, "batch_size": 4}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient, **given)
    assert not np.any(updates["w"])
    assert np.all(np.asarray(updates["b"]) != 0)
