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


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_optimized_function_is_traced_anew(setting):
    f = hs.optimize(loss)
    outside = text(f)
    with SETTINGS[setting]():
        assert text(f) == text(hs.optimize(loss)) != outside
        np.testing.assert_array_equal(f(W, X), jax.jit(lambda w, x: loss(w, x))(W, X))


def test_what_tracing_refuses_is_refused_on_a_second_call():
    f = hs.grad(lambda w, x: jnp.mean((x + w[None, 0]) ** 2 + x * w), statistics=hs.second_moment())
    f(W, X)
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank"):
        f(W, X)


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


def test_a_setting_traces_once():
    traced = []
    f = hs.grad(lambda w, x: (traced.append(0), jnp.mean(x @ w))[1], statistics=hs.norms())
    f(W, X)
    once = len(traced)
    for _ in range(2):
        with jax.default_matmul_precision("highest"):
            f(W, X)
        f(W, X)
    assert len(traced) == 2 * once


def test_a_train_step_is_traced_anew():
    optax = pytest.importorskip("optax")
    step = hs.train_step(loss, optax.sgd(0.1), statistics=hs.norms())

    def made(step):
        w = W + 0
        return step(w, optax.sgd(0.1).init(w), X)[0]

    made(step)
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(
            made(step), made(hs.train_step(loss, optax.sgd(0.1), statistics=hs.norms()))
        )
