"""Several views of each example in a batch: concatenated, through one network, apart again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering

KEYS = jax.random.split(jax.random.key(0), 5)
PARAMS = {"a": jax.random.normal(KEYS[0], (7, 5)), "b": jax.random.normal(KEYS[1], (5,))}
PARAMS["c"] = jax.random.normal(KEYS[2], (5, 4))
X, Y = jax.random.normal(KEYS[3], (6, 7)), jax.random.normal(KEYS[4], (6, 7))


def network(p, x):
    return jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]


def three_views(p, x, y):
    z = network(p, jnp.concatenate([x, y, 2 * x]))
    n = x.shape[0]
    return jnp.mean(jnp.sum((z[:n] - z[n : 2 * n]) ** 2 + z[2 * n :], -1))


def one_side_stopped(p, x, y):
    """As SimSiam does: the split's transpose lays zeros where nothing flows back."""
    student, teacher = jnp.split(network(p, jnp.concatenate([x, y])), 2)
    return jnp.mean(jnp.sum((student - jax.lax.stop_gradient(teacher)) ** 2, -1))


def guided(p, x, y):
    """As classifier-free guidance does: half of the rows take an embedding that all share."""
    with_null = jnp.concatenate([y, jnp.broadcast_to(p["a"][:, 0], y.shape)])
    z = network(p, jnp.concatenate([x, x]) + with_null)
    return jnp.mean(jnp.sum((2 * z[: x.shape[0]] - z[x.shape[0] :]) ** 2, -1))


def shifted_views(p, x, y):
    z = network(p, jnp.concatenate([x, y]))
    return jnp.mean(jnp.sum((z[1:7] - z[5:11]) ** 2, -1))


@pytest.mark.parametrize(
    ("loss", "strategy"),
    covering([three_views, one_side_stopped, guided], ["auto", "lift", "loop"]),
)
def test_views_belong_to_their_example(loss, strategy):
    examples = jax.vmap(jax.grad(loss), (None, 0, 0))(PARAMS, X[:, None], Y[:, None])
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment(), strategy=strategy)
    gradient, squares = f(PARAMS, X, Y)
    for name, g in examples.items():
        np.testing.assert_allclose(gradient[name], g.mean(0), atol=1e-5 * float(jnp.abs(g).max()))
        np.testing.assert_allclose(squares[name], (g**2).mean(0), atol=1e-5 * float((g**2).max()))


def test_shifted_views_are_refused():
    with pytest.raises(hs.Refusal, match=r"meets others|out of the batch"):
        hs.grad(shifted_views, batch_argnums=(1, 2), statistics=hs.second_moment())(PARAMS, X, Y)
