"""Rows that nobody owns and that are taken by number before they meet the examples: whichever
example each meets, their sum is no constant that all share.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B, D = 4, 3
rng = np.random.default_rng(0)
W, V, E, X = (rng.normal(size=s).astype(np.float32) for s in [(D, 2), (D,), (B, D), (B, D)])
ORDER = np.array([2, 0, 3, 1])

TAKEN = {
    "in another order": lambda rows: rows[ORDER],
    "some twice": lambda rows: rows[np.array([0, 0, 1, 1])],
    "of a longer array": lambda rows: jnp.concatenate([rows, rows])[np.array([0, 5, 2, 7])],
    "by a loop": lambda rows: jax.lax.scan(lambda c, i: (c, rows[i]), 0, jnp.arange(B))[1],
    "backwards by a loop": lambda rows: jax.lax.map(lambda i: rows[B - 1 - i], jnp.arange(B)),
    "by a loop over numbers": lambda rows: jax.lax.map(lambda i: rows[i], jnp.asarray(ORDER)),
}


def gradient_and_sum(taken):
    def function(w, v, e, x):
        def loss(w):
            return jnp.mean(jnp.sum(jnp.tanh((taken(v * e) * x) @ w), 1))

        return jax.grad(loss)(w), jnp.sum(v * e, 0)

    return function


@pytest.mark.parametrize("name", TAKEN)
def test_the_sum_of_such_rows_is_refused(name):
    f = hs.rewrite(gradient_and_sum(TAKEN[name]), batch_argnums=3, statistics=hs.per_example())
    with pytest.raises(hs.Refusal, match=r"position|moved along the examples"):
        f(W, V, E, X)


@pytest.mark.parametrize("name", TAKEN)
def test_gradients_beside_such_rows_are_exact(name):
    """That which the rows have no part in but beside the examples."""

    def loss(w, v, e, x):
        return jnp.mean(jnp.sum(jnp.tanh((TAKEN[name](v * e) * x) @ w), 1))

    found = hs.grad(loss, batch_argnums=3, statistics=hs.per_example())(W, V, E, X)[1]

    def alone(w, b):
        return jnp.sum(jnp.tanh((TAKEN[name](jnp.asarray(V * E))[b] * jnp.asarray(X)[b]) @ w))

    own = jax.vmap(jax.grad(alone), (None, 0))(W, jnp.arange(B))
    np.testing.assert_allclose(found, own, rtol=1e-5, atol=1e-6)


def test_rows_of_which_a_call_makes_the_second_of_its_results_are_found():
    """Its first result has them along another dimension."""
    call = hs.per_example_call(lambda n: (2 * n.T, jnp.sin(1.0 * n)), 0, (1, 0))

    def function(v, numbers, x):
        return jnp.sum(x * v * call(numbers)[1], 0) + jnp.sum(numbers * v, 0)

    f = hs.rewrite(function, batch_argnums=2, statistics=hs.per_example())
    with pytest.raises(hs.Refusal, match="position"):
        f(V, np.arange(B * D).reshape(B, D), X)
