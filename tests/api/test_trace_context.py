"""What JAX is set to when a function is called, also if called with such arguments before."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

W, X = (
    jnp.asarray(np.linspace(-1, 1, 3), jnp.float32),
    jnp.asarray(np.sin(np.arange(12.0)).reshape(4, 3), jnp.float32),
)
SETTINGS = {
    "matmul precision": lambda: jax.default_matmul_precision("highest"),
    "x64": lambda: jax.enable_x64(True),
    "partitionable threefry": lambda: jax.threefry_partitionable(False),
    "generator": lambda: jax.default_prng_impl("rbg"),
}


def loss(w, x):
    dropped = x * jax.random.bernoulli(jax.random.PRNGKey(0), 0.5, x.shape)
    return jnp.mean(jnp.tanh(dropped @ w) * jnp.arange(4))


def text(f):
    """The module without the lines of the source, among which is that of the call."""
    return re.sub(r"(?m)^#loc.*$|loc\(.*?\)", "", f.module(W, X).text())


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_statistic_is_traced_anew(setting):
    f = hs.grad(loss, statistics=hs.second_moment())
    before, outside = f(W, X)[0], text(f)
    with SETTINGS[setting]():
        assert text(f) == text(hs.grad(loss, statistics=hs.second_moment())) != outside
        np.testing.assert_array_equal(f(W, X)[0], jax.jit(jax.grad(lambda w, x: loss(w, x)))(W, X))
    np.testing.assert_array_equal(f(W, X)[0], before)


def test_a_mesh_in_use_is_seen():
    seen = []

    def loss(w, x):
        seen.append(jax.sharding.get_abstract_mesh().empty)
        return jnp.mean(x @ w)

    f = hs.grad(loss, statistics=hs.norms())
    f(W, X)
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        f(W, X)
    f(W, X)
    assert seen[0]
    assert not seen[-1]
