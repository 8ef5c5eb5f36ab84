"""Objects and arguments at the edges: copies and pickles, bytes of any kind, odd numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

W, X = jnp.ones((3, 2)), jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("edges", [(0, 0.7, 2), (0, 1, 1.00000001, 2), (0.1, 1, 1e5), (0.1, 0.7)])
def test_the_edges_of_a_histogram_are_not_rounded(edges, dtype):
    gradients = jnp.array([0.7, 1.0, 1.0, 0.1, 0.69999999, jnp.inf], dtype)
    (measure,) = hs.histogram(edges).measures
    counts = np.histogram(np.asarray(gradients, np.float64), edges)[0]
    np.testing.assert_array_equal(measure.function(gradients), counts)


@pytest.mark.parametrize("max_norm", [1e-46, 1e-39, 1e39])
def test_a_bound_that_norms_cannot_hold_is_rejected(max_norm):
    with pytest.raises(
        ValueError, match=r"max_norm from 1\.18e-38 to 3\.4e\+38, as norms here are float32"
    ):
        hs.grad(loss, statistics=hs.clipped_mean(max_norm))(W, X)


def test_the_least_bound_and_one_for_float64_are_held():
    least = float(jnp.finfo(jnp.float32).tiny)
    clipped = hs.grad(loss, statistics=hs.clipped_mean(least))(W, X)[1]
    assert jnp.isfinite(clipped).all()
    with jax.enable_x64(True):
        f = hs.grad(loss, statistics=hs.clipped_mean(1e-46))
        assert 0 < jnp.linalg.norm(f(W.astype(float), X.astype(float))[1]) <= 1e-46 * (1 + 1e-6)


WRONG = {
    "half a device": ({"shards": 2.5}, TypeError, "shards is 2.5; it is an integer"),
    "no device": ({"shards": 0}, ValueError, "shards is 0; it is the number of devices"),
    "bytes as text": (
        {"memory_budget": "1MB"},
        TypeError,
        "memory_budget is '1MB'; it is an integer",
    ),
    "no bytes": (
        {"memory_budget": -1},
        ValueError,
        "memory_budget is -1; it is a positive number of bytes",
    ),
    "a list of strategies": ({"strategy": ["lift"]}, ValueError, "strategy is .*; it is one of"),
}


@pytest.mark.parametrize(("planning", "kind", "said"), WRONG.values(), ids=WRONG)
def test_planning_is_told_what_it_takes(planning, kind, said):
    source = jax.jit(jax.grad(loss)).lower(W, X).as_text(debug_info=True)
    dumped = partial(hs.modules.rewrite_module, source, batch=["x"], statistics=hs.norms())
    for made in (dumped, lambda **how: hs.grad(loss, statistics=hs.norms(), **how)(W, X)):
        with pytest.raises(kind, match=said):
            made(**planning)
