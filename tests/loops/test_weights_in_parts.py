"""Weighted sums of gradients, examples along two dimensions: parts of a batch, axes of a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from tests.normalise.test_devices import mapped, mesh, text

B = 8
GRID, BOTH = mesh(data=2, model=2), ("data", "model")
X = jnp.asarray(
    np.random.default_rng(0).normal(size=(B, 3)) * np.arange(1, B + 1)[:, None], jnp.float32
)
W = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)


def squares(h):
    return jnp.mean(jnp.tanh(h) ** 2)


def dense(w, x):
    return squares(x @ w)


def parts_last(w, x):
    """Example b is in part b // 4, and the parts come behind the examples."""
    return squares(jnp.einsum("bpi,ij->bpj", x.reshape(2, 4, 3).transpose(1, 0, 2), w))


def parts_around_features(w, x):
    return squares(jnp.einsum("bip,ij->bjp", x.reshape(2, 4, 3).transpose(1, 2, 0), w))


def rows_of_a_table(w, x):
    return squares(w[jnp.int32(jnp.abs(x[:, 0]) * 3) % 3])


def rows_on_each_device(w, x):
    return lax.pmean(rows_of_a_table(w, x), BOTH)


def columns_on_each_device(w, x):
    return lax.pmean(lax.pmean(squares(x @ w), "model"), "data")


BATCH = P(BOTH)
LOSSES = {
    "parts behind": (parts_last, dense),
    "parts around features": (parts_around_features, dense),
    "a table, over two axes": (
        mapped(rows_on_each_device, GRID, (P(), BATCH), P()),
        rows_of_a_table,
    ),
    "examples over one axis, columns over the other": (
        mapped(columns_on_each_device, GRID, (P(None, "model"), P("data")), P(), check_vma=True),
        dense,
    ),
}


def weighted(gradients, weights):
    return np.mean(weights[:, None, None] * gradients, 0)


@pytest.mark.parametrize(("loss", "plain"), LOSSES.values(), ids=LOSSES)
def test_clipped_means_and_inner_products(loss, plain):
    source = text(jax.grad(loss), W, X)
    each = np.stack(
        [np.asarray(jax.jit(jax.grad(plain))(W, X[b : b + 1]), np.float64) for b in range(B)]
    )
    norms = np.linalg.norm(each.reshape(B, -1), axis=1)
    bound = float(np.median(norms))
    statistics = {
        "clipped": hs.clipped_mean(bound),
        "finite": hs.clipped_mean(bound, nan_safe=True),
    }
    statistics["inner"] = hs.inner_products()
    _, clipped, finite, inner = hs.rewrite_module(source, batch=[1], statistics=statistics).call(
        W, X
    )
    expected = weighted(each, np.minimum(1, bound / norms))
    for found in (clipped, finite):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        inner, np.einsum("bij,ij->b", each, each.mean(0)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("loss", [parts_last, parts_around_features])
def test_padding_in_parts(loss):
    real = jnp.arange(B) % 3 != 1

    def of_real(w, x, real):
        own = x * real[:, None]
        return loss(w, own) * B / real.sum()

    asked = {
        "statistics": hs.second_moment(),
        "batch_argnums": (1, 2),
        "is_real": 2,
        "strategy": "square",
    }
    _, found = hs.grad(of_real, **asked)(W, X, real)
    each = jax.vmap(lambda x: jax.grad(dense)(W, x[None]))(X[np.asarray(real)])
    np.testing.assert_allclose(found, (each**2).mean(0), rtol=1e-4, atol=1e-7)
