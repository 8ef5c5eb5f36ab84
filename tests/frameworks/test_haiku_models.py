"""Haiku: functions of parameters, of state and of a key."""

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from tests.frameworks.closeness import assert_close

hk = pytest.importorskip("haiku")

X = jnp.sin(jnp.arange(40.0)).reshape(8, 5)
Y = jnp.cos(jnp.arange(24.0)).reshape(8, 3)


def test_state_and_keys_are_arguments_and_an_aux():
    def network(x):
        count = hk.get_state("count", [], init=jnp.zeros)
        hk.set_state("count", count + 1)
        return hk.Linear(3)(hk.dropout(hk.next_rng_key(), 0.5, x))

    model = hk.transform_with_state(network)
    params, state = model.init(jax.random.key(0), X)

    def loss(params, state, key, x, y):
        out, state = model.apply(params, state, key, x)
        return jnp.mean((out - y) ** 2), state

    f = hs.value_and_grad(loss, has_aux=True, batch_argnums=(3, 4), statistics=hs.norms())
    plain = jax.value_and_grad(loss, has_aux=True)
    arguments = params, state, jax.random.key(1), X, Y
    result, norms = f(*arguments)
    assert_close(result, plain(*arguments))
    assert norms.shape == (8,)


def test_batch_norm_in_training_is_refused_where_its_line_is():
    model = hk.transform_with_state(
        lambda x: hk.BatchNorm(True, True, 0.9)(hk.Linear(3)(x), is_training=True)
    )
    params, state = model.init(jax.random.key(0), X)

    def loss(params, state, x, y):
        return jnp.mean((model.apply(params, state, None, x)[0] - y) ** 2)

    f = hs.grad(loss, batch_argnums=(2, 3), statistics=hs.norms())
    with pytest.raises(hs.Refusal, match=r"models\.py:\d+ \(in haiku/_src/\w+\.py:\d+\)"):
        f(params, state, X, Y)
