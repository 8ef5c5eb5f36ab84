"""Barriers, as `jax.checkpoint` has them: they hide neither constants nor positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

from .verdicts import reasons

B = 4
X = np.sin(np.arange(12, dtype=np.float32)).reshape(B, 3)
PLACES = np.arange(B, dtype=np.float32)
PARAMETERS = {"w": np.ones((3, 2), np.float32), "bias": np.ones(2, np.float32)}


def fit(p, x):
    return jnp.sum(jnp.tanh(x @ p["w"] + p["bias"]))


def penalised(p, x):
    own = jax.vmap(jax.checkpoint(fit), (None, 0))(p, x)
    return jnp.mean(own) + 0.1 * jnp.sum(p["w"] ** 2)


def test_a_penalty_beside_what_is_computed_again():
    own = hs.grad(penalised, statistics=hs.per_example())(PARAMETERS, X)[1]
    each = jax.vmap(lambda x: jax.grad(penalised)(PARAMETERS, x[None]))(X)
    for name, rows in each.items():
        np.testing.assert_allclose(own[name], rows, rtol=1e-5)


def masked(p, x, places):
    return places * (jnp.tanh(x @ p["w"]) + p["bias"]).sum(1)


@pytest.mark.parametrize("places", [PLACES, np.float32([0, 0, 1, 1])], ids=["iota", "groups"])
def test_weights_by_place_are_nobodys(places):
    def loss(p, x):
        return jnp.mean(jax.checkpoint(masked)(p, x, places))

    assert any(reasons(jax.grad(loss), PARAMETERS, X))


def test_weights_by_place_that_are_an_argument():
    def loss(p, x, places):
        return jnp.mean(jax.checkpoint(masked)(p, x, places))

    assert any(reasons(jax.grad(loss), PARAMETERS, X, PLACES))
