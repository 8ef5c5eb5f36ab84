"""An optimizer's place in a chain: nothing before it is dropped, no rate is applied twice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

FROZEN, LABELS = {"w": True, "b": False}, {"w": "frozen", "b": "trained"}
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
READERS = {
    "dp_sgd": ho.dp_sgd(0.1, 1.0, 1.0, seed=0),
    "dp_adam": ho.dp_adam(0.1, 1.0, 1.0, seed=0),
    "private": optax.chain(ho.private_gradient(1.0, 1.0, seed=0), optax.adam(0.1)),
    "sign": ho.micro_sign_sgd(0.1),
    "micro": ho.micro_adam(0.1),
    "var": ho.micro_adam_var(0.1),
    "msq": ho.micro_adam_msq(0.1),
    "moments": optax.chain(ho.track_moments(), optax.adam(0.1)),
}
CHANGES = {
    "clips": optax.clip_by_global_norm(1e9),
    "decays": optax.add_decayed_weights(0.1),
    "freezes": optax.masked(optax.set_to_zero(), FROZEN),
    "steps": optax.sgd(0.1),
    "replaces NaN": optax.zero_nans(),
}


def loss(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["w"]) + p["b"], -1))


def parameters():
    return {"w": jnp.full((3, 2), 0.3), "b": jnp.zeros(2)}


def trained(optimizer, steps=2):
    step, params = hs.train_step(loss, optimizer), parameters()
    state = optimizer.init(params)
    for _ in range(steps):
        params, state, _ = step(params, state, X)
    return params


def refused(optimizer, match):
    with pytest.raises(ValueError, match=match):
        ho.required_statistics(optimizer, parameters())


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_comes_before_is_not_dropped(change, reader):
    refused(optax.chain(CHANGES[change], READERS[reader]), "would be lost")


@pytest.mark.parametrize(
    "frozen",
    [
        lambda optimizer: optax.multi_transform(
            {"frozen": optax.set_to_zero(), "trained": optimizer}, LABELS
        ),
        lambda optimizer: optax.chain(optimizer, optax.masked(optax.set_to_zero(), FROZEN)),
        lambda optimizer: optax.chain(
            optax.masked(optax.set_to_zero(), FROZEN),
            optax.masked(optimizer, {"w": False, "b": True}),
        ),
    ],
    ids=["multi_transform", "behind", "masked"],
)
def test_what_is_frozen_stays(frozen):
    optimizer, gradient = frozen(READERS["dp_sgd"]), parameters()
    given = {"grad": gradient, "clipped_mean": gradient, "batch_size": 4}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient, **given)
    assert not np.any(updates["w"])
    assert np.all(np.asarray(updates["b"]) != 0)


@pytest.mark.parametrize(
    "second", [optax.adam(0.1), optax.sgd(optax.linear_schedule(0.0, 0.1, 9)), ho.adam(0.1)]
)
@pytest.mark.parametrize("first", [READERS["dp_sgd"], ho.micro_adam(0.1), ho.adam(0.1)])
def test_a_second_learning_rate_is_refused(first, second):
    twice = optax.chain(first, second)
    for optimizer in (twice, ho.multi_steps(twice, 4), optax.apply_if_finite(twice, 3)):
        refused(optimizer, "second learning rate")


def test_private_steps_take_no_statistics_without_noise():
    refused(optax.chain(ho.private_gradient(1.0, 1.0, 0), ho.micro_adam(0.1)), "not private")


def test_private_gradients_go_into_any_optimizer():
    """Without noise Adam's steps by the clipped mean."""
    optimizer, adam, means = (
        optax.chain(ho.private_gradient(0.5, 0.0, 0), optax.adam(0.1)),
        optax.adam(0.1),
        parameters(),
    )
    state, expected = optimizer.init(means), adam.init(means)
    for gradient in (means, jax.tree.map(jnp.ones_like, means)):
        updates, state = optimizer.update(gradient, state, clipped_mean=means, batch_size=4)
        wanted, expected = adam.update(means, expected)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), updates, wanted)
