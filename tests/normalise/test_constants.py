"""Constants, prefix sums and called functions: evaluated and taken as XLA has them.

This folder alone tests what is done to a module before: programs for each device, constants, folded
sums.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs


def by_zero_along_the_examples(w, x):
    numbers = lax.div(lax.iota(jnp.int32, 6), jnp.zeros(6, jnp.int32))
    return jnp.mean((x * w)[numbers, 0] * x[:, 0] * w)


def through_complex_numbers(w, x):
    numbers = lax.iota(jnp.int32, 6).astype(jnp.complex64).real.astype(jnp.int32)
    return jnp.mean((x * w)[numbers, 0] ** 2)


@pytest.mark.parametrize("loss", [by_zero_along_the_examples, through_complex_numbers])
def test_indices_that_cannot_be_evaluated_are_refused(loss):
    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.norms())(jnp.float32(2), jnp.ones((6, 4)))


W, X = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(4, 3), (5, 6, 4)]))


def forwards(w, x):
    return jnp.mean(jnp.sum(jnp.cumsum(jnp.tanh(x @ w), 1) ** 2, (1, 2)))


def backwards(w, x):
    return jnp.mean(jnp.sum(lax.cumsum(jnp.tanh(x @ w), 1, reverse=True) ** 2, (1, 2)))


def over_examples(w, x):
    return jnp.mean(jnp.sum(jnp.cumsum(jnp.tanh(x @ w), 0) ** 2, (1, 2)))


def lowered(loss):
    return jax.jit(jax.grad(loss)).trace(W, X).lower(lowering_platforms=("cuda",)).as_text()


def exported(loss):
    return jax.export.export(jax.jit(jax.grad(loss)), platforms=["cuda"])(W, X).mlir_module()


@pytest.mark.parametrize("dumped", [lowered, exported])
@pytest.mark.parametrize("loss", [forwards, backwards])
def test_sums_of_each_example(loss, dumped):
    module = hs.rewrite_module(dumped(loss), batch=[1], statistics=hs.per_example())
    own = jax.vmap(lambda x: jax.grad(loss)(W, x[None]))(X)
    np.testing.assert_allclose(module.call(W, X)[1], own, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dumped", [lowered, exported])
def test_sums_over_the_examples_are_refused(dumped):
    with pytest.raises(hs.Refusal, match="along the example axis"):
        hs.rewrite_module(dumped(over_examples), batch=[1], statistics=hs.per_example())


W_OF_FUNCTIONS, X_OF_FUNCTIONS = (
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
    found = f(W_OF_FUNCTIONS, X_OF_FUNCTIONS)[1]
    alone = jnp.stack([jax.grad(loss)(W_OF_FUNCTIONS, x[None]) for x in X_OF_FUNCTIONS])
    np.testing.assert_allclose(found["all"], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["norms"], jnp.linalg.norm(alone, axis=(1, 2)), rtol=1e-5)


def test_over_the_examples_is_refused():
    def loss(w, x):
        return jnp.mean(lax.approx_max_k(jnp.tanh(x @ w), 2, reduction_dimension=0)[0])

    with pytest.raises(hs.Refusal, match="reduced to one value"):
        hs.grad(loss, statistics=hs.norms())(W_OF_FUNCTIONS, X_OF_FUNCTIONS)
