"""LAPACK's calls: each example's own matrix, and the batch as one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.linalg import qr_multiply

import hlo_surgery as hs

W, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(6, 12), (5, 6)])
)
BY_QR = lax.linalg.SvdAlgorithm.QR


def matrices(w, x):
    return (x @ w).reshape(-1, 4, 3)


def singular_values(matrix):
    return lax.linalg.svd(matrix, full_matrices=False, algorithm=BY_QR)[1]


def by_singular_values(w, x):
    return jnp.mean(jnp.sum(singular_values(matrices(w, x)) ** 3, -1))


def times_factor(matrix):
    """Weights for an example, of a product with the orthogonal factor of its own matrix."""
    return qr_multiply(lax.stop_gradient(matrix), jnp.ones((2, 4)))[0]


def by_products(w, x):
    rows = matrices(w, x)
    return jnp.mean(jnp.sum(jax.vmap(times_factor)(rows) * rows[:, :2, :3], (1, 2)))


@pytest.mark.parametrize(
    ("loss", "call"), [(by_singular_values, "gesvd"), (by_products, "ormqr")], ids=["svd", "qr"]
)
def test_matrix_by_matrix_is_example_by_example(loss, call):
    gradient = jax.grad(loss)
    assert call in jax.jit(gradient).lower(W, X).as_text()
    found = hs.grad(loss, statistics=hs.per_example())(W, X)[1]
    alone = jnp.stack([gradient(W, x[None]) for x in X])
    np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-5)


def test_the_batch_as_one_matrix_is_refused():
    def loss(w, x):
        return jnp.sum(singular_values(jnp.tanh(x @ w)))

    with pytest.raises(hs.Refusal, match="along the example axis"):
        hs.grad(loss, statistics=hs.norms())(W, X)


FACTORISED = {
    "eigh": lambda m: jnp.linalg.eigh(m)[0],
    "cholesky": jnp.linalg.cholesky,
    "qr": lambda m: jnp.linalg.qr(m)[1],
    "solve": lambda m: jnp.linalg.solve(m, jnp.ones((*m.shape[:-1], 1))),
}


@pytest.mark.parametrize("target", ["gpu:h200", "tpu:v5e"])
@pytest.mark.parametrize("name", FACTORISED)
def test_a_matrix_of_the_batch_is_refused_for_other_devices(name, target):
    def loss(w, x):
        rows = jnp.tanh(x @ w)
        return jnp.sum(FACTORISED[name]((rows @ rows.T + jnp.eye(5))[None]) ** 2)

    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.norms(), target=target).explain(W, X)
