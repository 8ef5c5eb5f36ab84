"""Functions that custom calls name, as the comparator of XLA's approximate top k."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

W, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(3, 6), (5, 3)])
)


def largest(w, x):
    return jnp.mean(jnp.sum(lax.approx_max_k(jnp.tanh(x @ w), 2)[0] ** 2, -1))


def in_a_loop(w, x):
    def step(h, _):
        return h - 0.1 * lax.approx_min_k(jnp.tanh(h @ w), 2)[0].sum(-1, keepdims=True), None

    return jnp.mean(lax.scan(step, x, None, length=3)[0] ** 2)


@pytest.mark.parametrize("loss", [largest, in_a_loop])
def test_statistics_are_those_of_single_examples(loss):
    f = hs.grad(loss, statistics={"all": hs.per_example(), "norms": hs.norms()})
    found = f(W, X)[1]
    alone = jnp.stack([jax.grad(loss)(W, x[None]) for x in X])
    np.testing.assert_allclose(found["all"], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["norms"], jnp.linalg.norm(alone, axis=(1, 2)), rtol=1e-5)


def test_over_the_examples_is_refused():
    def loss(w, x):
        return jnp.mean(lax.approx_max_k(jnp.tanh(x @ w), 2, reduction_dimension=0)[0])

    with pytest.raises(hs.Refusal, match="reduced to one value"):
        hs.grad(loss, statistics=hs.norms())(W, X)
