"""Data that is moved over the examples: whose row it is, as a term of a gradient, nothing says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D = 4, 3
W, X = jnp.array([0.3, -0.2, 0.5]), jnp.sin(jnp.arange(12.0) ** 1.3).reshape(B, D)
PAIRS, ORDER = np.array([0, 0, 2, 2]), np.array([2, 0, 1, 3])
MATRIX = np.random.default_rng(0).normal(size=(B, B)).astype("float32")


def written_over(w, x):
    return jnp.mean(x.at[2].set(x[0]) @ w)


def written_at_a_number(w, x):
    return jnp.mean(lax.dynamic_update_slice(x, x[:1], (2, 0)) @ w)


def in_one_of_two_orders(w, x):
    return jnp.mean(jnp.where(PAIRS[:, None] > 1, x, x[::-1]) @ w)


def through_pairs(w, x):
    return jnp.mean((x @ x.T) @ x @ w)


def added_up_so_far(w, x):
    return jnp.mean(jnp.cumsum(x, 0) @ w)


def mixed_up(w, x):
    return jnp.mean((0.5 * x + 0.5 * x[::-1]) @ w)


def beside_their_own(w, x):
    return jnp.mean(jnp.tanh(x @ w) + x[::-1] @ w)


def spread_by_a_matrix(w, x):
    return jnp.sum((MATRIX @ jnp.tanh(x[ORDER]) * x) @ w) / B


def spread_in_part(w, x):
    return jnp.sum((MATRIX[:, 1:] @ jnp.tanh(x[:-1] * x[1:]) * x) @ w) / B


LOSSES = [
    written_over,
    written_at_a_number,
    in_one_of_two_orders,
    through_pairs,
    added_up_so_far,
    mixed_up,
    beside_their_own,
    spread_by_a_matrix,
    spread_in_part,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_moved_data_is_nobodys_term(loss):
    for made in hs.grad, hs.value_and_grad:
        with pytest.raises(hs.Refusal) as refused:
            made(loss, statistics=hs.norms())(W, X)
        assert refused.value.where.startswith(__file__)


def test_sums_that_a_matrix_weighs_are_each_examples_own():
    """Linear in all examples, so that each has its part."""
    loss = lambda w, x: jnp.sum((MATRIX @ x) @ w) / B  # noqa: E731
    found = hs.grad(loss, statistics=hs.per_example())(W, X)[1]
    alone = [jax.grad(loss)(W, jnp.zeros_like(X).at[b].set(X[b])) * B for b in range(B)]
    np.testing.assert_allclose(found, jnp.stack(alone), rtol=1e-5, atol=1e-5)
