"""Functions that statistics are given draw and make what they do elsewhere in the program."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

W, X = jnp.ones((3, 2)), jnp.sin(jnp.arange(12.0)).reshape(4, 3)


def loss(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, axis=-1))


def gradients():
    return jax.vmap(lambda x: jax.grad(loss)(W, x[None]))(X)


def drawn(g):
    """An inner product with what is drawn in JAX's default dtype, another one with x64."""
    return jnp.vdot(g, jax.random.normal(jax.random.key(3), g.shape))


def drawn_weights(norms):
    return jax.random.uniform(jax.random.key(3), norms.shape)


def weighted(squared):
    weights = drawn_weights(jnp.zeros(len(X)))[:, None, None]
    return ((weights * gradients()) ** (2 if squared else 1)).mean(0)


def scaled(g):
    return g * jax.random.normal(jax.random.key(3))


DRAWING = {
    "sum_of": (hs.sum_of(drawn), lambda: jax.vmap(drawn)(gradients()).sum()),
    "sum_of all": (hs.sum_of(drawn, per="global"), lambda: jax.vmap(drawn)(gradients()).sum()),
    "weighted_mean": (hs.weighted_mean(drawn_weights), lambda: weighted(False)),
    "weighted squares": (hs.weighted_second_moment(drawn_weights), lambda: weighted(True)),
    "mean_of": (hs.mean_of(scaled), lambda: scaled(gradients()).mean(0)),
}
OPTIONS = {
    "default": contextlib.nullcontext,
    "another generator": lambda: jax.threefry_partitionable(False),
    "x64": lambda: jax.enable_x64(True),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", DRAWING)
def test_what_is_drawn_is_what_the_program_draws(name, options):
    statistic, expected = DRAWING[name]
    with OPTIONS[options]():
        found = hs.grad(loss, statistics=statistic)(W, X)[1]
        wanted = expected()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
