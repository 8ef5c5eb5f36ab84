"""Unusual ops between the examples and a gradient: each example's contribution, or a refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

RNG = np.random.default_rng(0)
W, X = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in [(4,), (3, 4)])
OWN = jnp.tanh(X * W)


def each(w, x):
    return jnp.tanh(x * w)


def add_pairs(a, b):
    return a[0] + b[0], a[1] + b[1]


def reduced_beside_a_sum(w, x):
    """One reduce of two operands: one holds a sum already, one the examples."""
    summed = jnp.broadcast_to(jnp.sum(each(w, x), 0)[:, None], (4, 3))
    zero = jnp.float32(0)
    first, second = lax.reduce((summed, each(w, x).T), (zero, zero), add_pairs, (1,))
    return first + second


def behind_a_barrier(w, x):
    """The barrier holds a sum and the examples."""
    summed, _ = lax.optimization_barrier((jnp.sum(each(w, x), 0), jnp.sin(x)))
    return 2 * summed


def divided_by_a_count(w, x):
    """The count is data: a constant of the batch."""
    return jnp.sum(each(w, x) * (x > 0), 0) / jnp.sum((x[:, 1] < 9).astype(x.dtype))


CONTRIBUTIONS = {
    "behind a barrier with the examples": (behind_a_barrier, 2 * OWN),
    "divided by a sum of data": (divided_by_a_count, OWN * (X > 0) / 3),
}


@pytest.mark.parametrize("strategy", ["lift", "loop"])
@pytest.mark.parametrize(("gradient", "expected"), CONTRIBUTIONS.values(), ids=CONTRIBUTIONS.keys())
def test_contributions(gradient, expected, strategy):
    f = hs.rewrite(
        gradient,
        batch_argnums=1,
        statistics=hs.per_example(),
        loss_reduction="sum",
        strategy=strategy,
    )
    total, examples = f(W, X)
    np.testing.assert_allclose(examples, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, gradient(W, X), rtol=1e-5, atol=1e-5)


def sums_scattered_by_each_example(w, x):
    """Row ids[b] gets a sum over all examples: two sums multiplied, the first being one of
    indices.
    """
    ids = jnp.argmax(x, 1)
    summed = jnp.sum(each(w, x), 0)
    return jnp.zeros((5, 4)).at[ids].add(jnp.broadcast_to(summed, (3, 4)))


def update_of_mixed_data(w, x):
    return lax.dynamic_update_slice(jnp.max(x, 0), jnp.sum(each(w, x), 0)[:2], (0,))


def padded_with_mixed_data(w, x):
    return lax.pad(jnp.sum(each(w, x), 0), jnp.max(x), [(1, 0, 0)])


def scattered_onto_mixed_data(w, x):
    return jnp.max(x, 0).at[jnp.argmax(x, 1)].add(each(w, x)[:, 0])


def complex_with_mixed_data(w, x):
    return lax.complex(jnp.sum(each(w, x), 0), jnp.max(x, 0))


def reduced_onto_mixed_data(w, x):
    return lax.reduce(each(w, x), jnp.max(x), lax.add, (0,))


def added_to_mixed_data(w, x):
    return jnp.max(x, 0) + jnp.sum(each(w, x), 0)


REFUSED = [
    reduced_beside_a_sum,
    sums_scattered_by_each_example,
    update_of_mixed_data,
    padded_with_mixed_data,
    scattered_onto_mixed_data,
    complex_with_mixed_data,
    reduced_onto_mixed_data,
    added_to_mixed_data,
]


@pytest.mark.parametrize("gradient", REFUSED)
def test_refused(gradient):
    """An offset that mixes the examples belongs to none of them, however it is added."""
    f = hs.rewrite(gradient, batch_argnums=1, statistics=hs.second_moment(), loss_reduction="sum")
    with pytest.raises(hs.Refusal):
        f(W, X)


@pytest.mark.parametrize(
    "normaliser", [lambda m: jnp.maximum(m.sum(), 1), lambda m: jnp.where(m.sum() > 0, 2.0, 1.0)]
)
def test_normalisers_of_data(normaliser):
    """The count of the batch's mask is a constant: each example counts with its own term of the
    batch gradient.
    """
    mask = (X > 0).astype(X.dtype)

    def loss(w, x, m):
        return jnp.sum(m * each(w, x) ** 2) / normaliser(m)

    def own(w, x, m):
        return jnp.sum(m * each(w, x) ** 2) / normaliser(mask)

    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.per_example(), loss_reduction="sum")
    np.testing.assert_allclose(
        f(W, X, mask)[1], jax.vmap(jax.grad(own), (None, 0, 0))(W, X, mask), rtol=1e-5
    )
