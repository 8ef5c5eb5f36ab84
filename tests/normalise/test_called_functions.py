"""Functions that custom calls name, as the comparator of XLA's approximate top k."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.calls import HELD, hold_called, release_called

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


def test_a_rewritten_module_holds_what_is_called_once_and_runs():
    def both(w, x):
        return largest(w, x) + largest(w, x * 2)

    text = jax.jit(jax.grad(both)).lower(W, X).as_text()
    module = hs.rewrite_module(text, batch=[1], gradients=[0], statistics=hs.norms())
    assert module.text().count("func.func private") == 1
    alone = [jnp.linalg.norm(jax.grad(both)(W, x[None])) for x in X]
    np.testing.assert_allclose(module.call(W, X)[-1], alone, rtol=1e-5)


def test_what_a_module_brings_along_is_no_function():
    text = jax.jit(jax.grad(largest)).lower(W, X).as_text()
    module = mlir.parse(text)
    calls = [op for op in mlir.all_operations(module) if op.name == "stablehlo.custom_call"]
    for op in calls:
        with mlir.context():
            op.attributes[HELD] = mlir.ir.ArrayAttr.get([])
    hold_called(module)
    release_called(module)
    assert calls
    assert not [op for op in calls if HELD in op.attributes]
