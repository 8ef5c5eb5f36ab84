"""Padding that a mask leaves out is zero, and holds nothing of what it is multiplied with: so rows
of all examples may be filled up to whole chunks, and their mean be one over the number that counts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, T, WIDTH, CHUNK = 4, 5, 3, 6
RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(WIDTH, WIDTH)), "b": RNG.normal(size=WIDTH)}
X = RNG.normal(size=(B, T, WIDTH))
MASK = (np.arange(T) < np.array([[5], [1], [2], [4]])).astype(float)
STATISTICS = {"all": hs.per_example(), "norms": hs.norms()}


def padded(rows, filling=0.0):
    flat = rows.reshape(B * T, *rows.shape[2:])
    amounts = [(0, -len(flat) % CHUNK), *[(0, 0)] * (flat.ndim - 1)]
    return jnp.pad(flat, amounts, constant_values=filling)


def in_chunks(p, rows, weights):
    """The sum over rows, a chunk at a time, of which the last is not full."""

    @jax.checkpoint
    def step(so_far, chunk):
        x, weight = chunk
        terms = jnp.sum(jnp.exp(jnp.tanh(x @ p["w"] + p["b"])), -1)
        return so_far + jnp.sum(terms * weight), None

    chunks = rows.reshape(-1, CHUNK, WIDTH), weights.reshape(-1, CHUNK)
    return lax.scan(step, 0.0, chunks)[0]


def masked(p, x, mask):
    return in_chunks(p, padded(x), padded(mask)) / jnp.sum(mask)


def chosen(p, x, mask):
    weights = jnp.where(padded(mask > 0, False), 1 / jnp.sum(mask), 0.0)
    return in_chunks(p, padded(x), weights)


def written_into_zeros(p, x, mask):
    flat = jnp.zeros(-(-B * T // CHUNK) * CHUNK).at[: B * T].set(mask.reshape(-1))
    return in_chunks(p, padded(x), flat / jnp.sum(mask))


@pytest.mark.parametrize("loss", [masked, chosen, written_into_zeros])
def test_padding_at_zero_holds_no_data(loss):
    _, found = hs.grad(loss, batch_argnums=(1, 2), statistics=STATISTICS)(PARAMS, X, MASK)

    def own(i):
        def term(p):
            terms = jnp.sum(jnp.exp(jnp.tanh(X[i] @ p["w"] + p["b"])), -1)
            return B * jnp.sum(terms * MASK[i]) / MASK.sum()

        return jax.grad(term)(PARAMS)

    each = [own(i) for i in range(B)]
    close = lambda a, *rows: np.testing.assert_allclose(a, np.stack(rows), rtol=1e-4)  # noqa: E731
    jax.tree.map(close, found["all"], *each)
    norms = [np.sqrt(sum(np.sum(np.square(a)) for a in jax.tree.leaves(g))) for g in each]
    np.testing.assert_allclose(found["norms"], norms, rtol=1e-4)


def filled_with_ones(p, x, mask):
    return in_chunks(p, padded(x), padded(mask, 1.0)) / jnp.sum(mask)


def raised(p, x, mask):
    return in_chunks(p, padded(x), padded(mask) + 1 / jnp.sum(mask))


def chosen_otherwise(p, x, mask):
    weights = jnp.where(padded(mask > 0, False), 1 / jnp.sum(mask), 1 / jnp.sum(mask + 1))
    return in_chunks(p, padded(x), weights)


@pytest.mark.parametrize("loss", [filled_with_ones, raised, chosen_otherwise])
def test_padding_that_counts_is_refused(loss):
    """What the rows behind bring is nobody's, and rests on the number of all."""
    with pytest.raises(hs.Refusal, match="meets each example's own values"):
        hs.grad(loss, batch_argnums=(1, 2), statistics=STATISTICS)(PARAMS, X, MASK)
