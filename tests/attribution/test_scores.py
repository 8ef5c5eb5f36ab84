"""Scores and preconditioning, against dense linear algebra in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.attribution import covariance, preconditioned, scores, write_index
from hlo_surgery.attribution import rows as blocks

RNG = np.random.default_rng(1)
N, Q = 50, 4
ROWS = {"a": RNG.normal(size=(N, 2, 3)).astype(np.float32), "b": RNG.normal(size=(N, 2))}
QUERIES = {"a": RNG.normal(size=(Q, 2, 3)), "b": RNG.normal(size=(Q, 2))}


@pytest.fixture
def index(tmp_path):
    return write_index(lambda rows: rows, ROWS, tmp_path)


@pytest.fixture(params=[1, 200, blocks.BLOCK_BYTES])
def block_bytes(request, monkeypatch):
    """One example at a time, a few, and all at once."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


def flat(tree, names="ab"):
    return np.concatenate([np.float64(tree[n]).reshape(len(tree[n]), -1) for n in names], axis=1)


def held(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.usefixtures("block_bytes")
def test_scores_are_inner_products(index):
    found = scores(index, QUERIES)
    assert found.shape == (Q, N)
    held(found, flat(QUERIES) @ flat(ROWS).T)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("per", ["parameter", "global"])
def test_preconditioned_scores(index, per):
    groups = ["ab"] if per == "global" else ["a", "b"]
    expected = 0
    for names in groups:
        g, q = flat(ROWS, names), flat(QUERIES, names)
        block = g.T @ g / N
        damped = block + 0.1 * np.trace(block) / len(block) * np.eye(len(block))
        expected = expected + q @ np.linalg.inv(damped) @ g.T
    found = preconditioned(QUERIES, covariance(index, per), damping=0.1)
    held(scores(index, found), expected)


def test_scores_of_whole_gradients_are_the_influence_on_the_loss(tmp_path):
    """From `vmap`: of rows that are the gradients themselves."""

    def loss(p, x, y):
        return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2)

    p = {"w": jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32), "v": jnp.ones(4)}
    x, y = RNG.normal(size=(9, 3)).astype(np.float32), np.ones(9, np.float32)
    gradients = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.per_example())
    index = write_index(lambda batch: gradients(p, *batch)[1], (x, y), tmp_path, batch_size=4)
    own = jax.vmap(lambda x, y: jax.grad(loss)(p, x[None], y[None]))(x, y)
    g = flat(own, ["v", "w"])
    held(scores(index, gradients(p, x[:2], y[:2])[1]), g[:2] @ g.T)


WRONG = {
    "names": ({"a": QUERIES["a"]}, "queries have"),
    "shapes": (QUERIES | {"b": np.ones((Q, 3))}, r"\['b'\] of shape \(4, 3\), not \(4, 2\)"),
    "counts": (QUERIES | {"b": np.ones((1, 2))}, r"\(1, 2\), not \(4, 2\)"),
    "numbers": ({"a": 1.0, "b": 2.0}, r"\['a'\] of shape \(\), not"),
    "not finite": (QUERIES | {"b": np.full((Q, 2), np.nan)}, "not finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_queries_are_named(index, name):
    queries, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        scores(index, queries)
    with pytest.raises(ValueError, match=message):
        preconditioned(queries, covariance(index), damping=0.1)
