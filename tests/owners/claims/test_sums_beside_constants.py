"""Constants by place, beside the examples' rows or the sums of groups, and their sum as another
output: no constant that all share.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D = 8, 2
PAIRS = B // 4
rng = np.random.default_rng(0)
W, V, X, K = (rng.normal(size=s).astype(np.float32) for s in [(D, D), (D,), (B, D), (B, D)])
WEIGHTS = np.float32([1, 2])


def refused(function):
    f = hs.rewrite(function, batch_argnums=2, statistics=hs.per_example())
    with pytest.raises(hs.Refusal, match="holds something for each example's position"):
        f(W, V, X, K)


def beside_rows(numbers):
    """Rows and constants, one below another, of which each step takes those with these numbers."""

    def function(w, v, x, k):
        def loss(w):
            listed = jnp.concatenate([x, v * k])
            return jnp.mean(lax.map(lambda i: jnp.sum(jnp.tanh(listed[numbers(i)] @ w)), STEPS))

        return jax.grad(loss)(w), jnp.sum(v * k, 0)

    return function


STEPS = jnp.arange(B)
OF_ITS_OWN_PLACE = {
    "in order": lambda i: jnp.stack([i, B + i]),
    "backwards": lambda i: jnp.stack([i, 2 * B - 1 - i]),
}


@pytest.mark.parametrize("name", OF_ITS_OWN_PLACE)
def test_constants_that_each_step_takes_beside_its_row_are_refused(name):
    refused(beside_rows(OF_ITS_OWN_PLACE[name]))


OF_NO_PLACE = {
    "one for all": lambda i: jnp.stack([i, jnp.full_like(i, B + 1)]),
    "none": lambda i: i[None],
}


@pytest.mark.parametrize("name", OF_NO_PLACE)
def test_constants_that_no_step_takes_as_its_own_are_shared(name):
    f = hs.rewrite(beside_rows(OF_NO_PLACE[name]), batch_argnums=2, statistics=hs.per_example())
    (_, total), (each, of_total) = f(W, V, X, K)

    def own(w, b):
        rows = jnp.concatenate([X, V * K])[OF_NO_PLACE[name](b)]
        return jnp.sum(jnp.tanh(rows @ w))

    expected = jax.vmap(jax.grad(own), (None, 0))(W, STEPS)
    np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_total, np.broadcast_to(total, (B, D)), rtol=1e-5)


def listed(sums, constants):
    return jnp.concatenate([sums, constants])


def updated(sums, constants):
    return lax.dynamic_update_slice(listed(constants, constants), sums, (0,))


def added(laid_out):
    return lambda sums, constants: laid_out(sums, constants).reshape(2, PAIRS).sum(0) * WEIGHTS


BESIDE_SUMS = {
    "laid out": added(listed),
    "put over": added(updated),
    "added": lambda sums, constants: (sums + constants) * WEIGHTS,
}


@pytest.mark.parametrize("name", BESIDE_SUMS)
def test_constants_beside_sums_of_groups_of_groups_are_refused(name):
    def function(w, v, x, k):
        constants = jnp.sum((v * k)[:PAIRS], 1)

        def loss(w):
            of_pairs = jnp.sum(jnp.tanh(x @ w), 1).reshape(B // 2, 2).sum(1)
            sums = of_pairs.reshape(PAIRS, 2).sum(1)
            return jnp.sum(BESIDE_SUMS[name](sums, constants)) / B

        return jax.grad(loss)(w), jnp.sum(constants) * V

    refused(function)
