"""Curvature by statistics of gradients: held against whole matrices of a small model.

This folder alone tests each statistic, against NumPy on one gradient at a time, and what privacy is
promised.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hlo_surgery as hs

B, D, H, C = 6, 3, 5, 4
RNG = np.random.default_rng(0)


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


PARAMS = {"w": draw(D, H), "b": draw(H), "v": draw(H, C) / 2}
X, Y = draw(B, D), jnp.asarray(RNG.integers(0, C, B))


def logits_of(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]


def cross_entropy(logits, labels):
    rows = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(rows, labels[:, None], 1))


def loss(p, x, y):
    return cross_entropy(logits_of(p, x), y)


def gauss_newton_diagonal(hessian_of_output):
    """The mean over the examples of the diagonal of J' H J, from whole matrices."""
    flat, unravel = ravel_pytree(PARAMS)

    def own(x):
        outputs = lambda flat: logits_of(unravel(flat), x[None])[0]  # noqa: E731
        jacobian = jax.jacobian(outputs)(flat)
        return jnp.einsum("ip,ij,jp->p", jacobian, hessian_of_output(outputs(flat)), jacobian)

    return unravel(jnp.mean(jax.vmap(own)(X), 0))


def softmax_hessian(logits):
    p = jax.nn.softmax(logits)
    return jnp.diag(p) - jnp.outer(p, p)


def held(found, expected, rtol=1e-4, atol=1e-6):
    jax.tree.map(
        lambda own, value: np.testing.assert_allclose(own, value, rtol=rtol, atol=atol),
        found,
        expected,
    )


def test_squared_scores_of_all_labels_are_the_gauss_newton_diagonal():
    scores = lambda p, x, c: jnp.mean(hs.curvature.gauss_newton_score(logits_of(p, x), c))  # noqa: E731
    f = hs.grad(scores, batch_argnums=1, statistics=hs.second_moment())
    each = jax.lax.map(lambda c: f(PARAMS, X, c)[1], jnp.arange(C))
    found = jax.tree.map(lambda x: x.sum(0), each)
    held(found, gauss_newton_diagonal(softmax_hessian))


@pytest.mark.parametrize("strategy", ["auto", pytest.param("loop", marks=pytest.mark.slow)])
def test_hessian_vector_products_of_single_examples(strategy):
    direction = jax.tree.map(jnp.cos, PARAMS)

    def product(p, x, y):
        return jax.jvp(lambda p: jax.grad(loss)(p, x, y), (p,), (direction,))[1]

    asked = {"norms": hs.norms(), "each": hs.per_example()}
    f = hs.rewrite(product, batch_argnums=(1, 2), statistics=asked, strategy=strategy)
    mean, found = f(PARAMS, X, Y)
    own = jax.vmap(lambda x, y: product(PARAMS, x[None], y[None]))(X, Y)
    held(found["each"], own, rtol=1e-3, atol=1e-5)
    held(mean, jax.tree.map(lambda x: x.mean(0), own), rtol=1e-3, atol=1e-5)
    squares = sum(jnp.sum(x.reshape(B, -1) ** 2, 1) for x in jax.tree.leaves(own))
    np.testing.assert_allclose(found["norms"], np.sqrt(squares), rtol=1e-4)
