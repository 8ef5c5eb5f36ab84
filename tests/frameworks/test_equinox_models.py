"""Equinox modules: models whose leaves are functions and flags too.

This folder alone tests models of Flax NNX and Equinox, and the page on them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


class Scaled(eqx.Module):
    scale: Any


def test_a_number_of_numpy_is_an_array():
    def scaled(model, x):
        return jnp.mean((model.scale * x) ** 2)

    model = Scaled(np.float64(0.5))
    gradient, _ = hs.grad(scaled, statistics=hs.norms())(model, X)
    assert_close(gradient.scale, eqx.filter_grad(scaled)(model, X).scale)


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


def checked_solve(p, x):
    """As `lineax.linear_solve` is made: a primitive whose rules are JAX, and which may raise."""
    from equinox.internal import create_vprim

    def solve(a, b):
        result = jnp.linalg.solve(a, b)
        return [eqx.error_if(result, ~jnp.isfinite(result).all(), "singular")]

    def rule(primals, tangents):
        a, b = primals
        (result,) = primitive.bind(a, b)
        of_a, of_b = (t if isinstance(t, jax.Array) else None for t in tangents)
        changed = 0 if of_b is None else of_b
        changed = changed if of_a is None else changed - of_a @ result
        return [result], [jnp.linalg.solve(a, changed)]

    primitive = create_vprim("solve", solve, lambda a, b: [b], rule, None)
    return jax.vmap(lambda b: primitive.bind(p, b)[0])(x)


def checked(p, x):
    h = jnp.tanh(x @ p)
    return eqx.error_if(h, jnp.any(~(h <= 2)), "too large")


@pytest.mark.parametrize("function", [checked, checked_solve])
def test_what_is_checked_for_errors_is_taken(function):
    def loss(p, x):
        return jnp.mean(jnp.sum(function(p, x) ** 2, -1))

    p = jnp.sin(jnp.arange(25.0)).reshape(5, 5) + 3 * jnp.eye(5)
    own = jax.vmap(lambda x: eqx.filter_grad(loss)(p, x[None]))(X)
    gradient, rows = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(p, X)
    assert_close(rows, own)
    assert_close(gradient, own.mean(0))


@pytest.mark.parametrize("function", [checked, checked_solve])
def test_an_error_is_raised(function):
    f = hs.grad(lambda p, x: jnp.mean(function(p, x) ** 2), batch_argnums=1, statistics=hs.norms())
    with pytest.raises(Exception, match=r"too large|singular"):
        jax.block_until_ready(f(jnp.full((5, 5), jnp.nan), X))
