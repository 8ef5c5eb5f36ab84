"""Equinox modules: models whose leaves are functions and flags too.

This folder alone tests models of Flax NNX and Equinox, and the page on them.
"""

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from tests.frameworks.closeness import assert_close

eqx = pytest.importorskip("equinox")

X = jnp.sin(jnp.arange(40.0)).reshape(8, 5)
Y = jnp.cos(jnp.arange(24.0)).reshape(8, 3)


def make_model():
    return eqx.nn.MLP(5, 3, 7, 2, key=jax.random.key(0))


def loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def squares_by_loop(model):
    each = [eqx.filter_grad(loss)(model, X[b : b + 1], Y[b : b + 1]) for b in range(len(X))]
    return jax.tree.map(lambda *g: jnp.mean(jnp.stack(g) ** 2, 0), *each)


def check(gradient, squares, model):
    wanted = eqx.filter_grad(loss)(model, X, Y)
    assert jax.tree.structure(gradient) == jax.tree.structure(wanted)
    assert_close(gradient, wanted)
    assert_close(squares, squares_by_loop(model))


def test_grad_is_by_the_floats_of_a_module():
    model = make_model()
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())
    check(*f(model, X, Y), model)


@pytest.mark.parametrize("around", [lambda f: f, eqx.filter_jit])
def test_a_gradient_function_of_equinox_is_rewritten(around):
    model = make_model()
    f = hs.rewrite(eqx.filter_grad(loss), batch_argnums=(1, 2), statistics=hs.second_moment())
    check(*around(f)(model, X, Y), model)


def test_a_train_step_takes_and_returns_the_module():
    optax = pytest.importorskip("optax")
    optimizer, model = optax.sgd(0.5), make_model()
    step = hs.train_step(loss, optimizer, batch_argnums=(1, 2), statistics={"n": hs.norms()})
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    gradient = eqx.filter_grad(loss)(model, X, Y)
    wanted = eqx.apply_updates(model, jax.tree.map(lambda g: -0.5 * g, gradient))
    new, state, metrics = step(make_model(), state, X, Y)
    assert metrics["n"].shape == (8,)
    assert jax.tree.structure(new) == jax.tree.structure(wanted)
    assert_close(*(eqx.filter(m, eqx.is_array) for m in (new, wanted)))
