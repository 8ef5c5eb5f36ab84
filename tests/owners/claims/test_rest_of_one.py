"""`lax.map` in parts with a last example alone, each of several positions: a sum over rows and
positions beside one over positions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, T, D, PART = 7, 2, 3, 3
DRAW = np.random.default_rng(0)
X = np.float32(DRAW.normal(size=(B, T, D)))
PARAMS = {
    name: np.float32(DRAW.normal(size=shape))
    for name, shape in {"w": (D, D), "b": (D,), "v": (D, D), "c": (D,)}.items()
}


def linear(params, x):
    return jnp.mean((x @ params["w"] + params["b"]) ** 2)


def residual(params, x):
    hidden = jax.nn.gelu((x - x.mean(-1, keepdims=True)) @ params["w"] + params["b"])
    return jnp.mean((x + hidden @ params["v"] + params["c"]) ** 2)


def attention(params, x):
    scores = jnp.where(np.tril(np.ones((T, T), bool)), (x @ params["w"]) @ x.T, -1e9)
    values = x @ params["v"] + params["b"]
    return jnp.mean((x + jax.nn.softmax(scores) @ values + params["c"]) ** 2)


@pytest.mark.parametrize("alone", [linear, residual, attention])
def test_the_last_example_has_the_same_constants(alone):
    def loss(params, x):
        return jnp.mean(lax.map(lambda rows: alone(params, rows), x, batch_size=PART))

    _, found = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(PARAMS, X)
    expected = jax.vmap(jax.grad(alone), (None, 0))(PARAMS, X)
    for name, own in expected.items():
        np.testing.assert_allclose(found[name], own, rtol=1e-4, atol=1e-5)


def weighed(params, x):
    return 2 * linear(params, x)


def with_another(params, x):
    return jnp.mean((x @ params["w"] + 2 * params["b"]) ** 2)


def of_one_position(params, x):
    return linear(params, x[:1])


def weighed_by_position(params, x):
    squares = (x @ params["w"] + params["b"]) ** 2
    return jnp.mean(squares * jnp.arange(1.0, T + 1)[:, None])


OTHER = [weighed, with_another, of_one_position, weighed_by_position]


@pytest.mark.parametrize("last", OTHER)
def test_another_loss_of_the_last_example_is_refused(last):
    def loss(params, x):
        whole = lax.map(lambda rows: linear(params, rows), x[:-1], batch_size=PART)
        return (jnp.sum(whole) + last(params, x[-1])) / B

    with pytest.raises(hs.Refusal, match="it is not shown that each of them gets its share"):
        hs.grad(loss, batch_argnums=1, statistics=hs.norms())(PARAMS, X)
