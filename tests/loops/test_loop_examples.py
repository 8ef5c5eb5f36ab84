"""Loops over examples: any chunk, shards and B; each number as from one example at a time.

The references are in float64. Elements are sums of at most 64 terms of size about 1 in float32.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hlo_surgery as hs
from hlo_surgery.requests import options as rooflines
from hlo_surgery.requests.options import roofline
from tests.strategies.test_fused import own_gradients

B, LENGTH, WIDTH, WIDER, BOUND = 6, 3, 4, 5, 0.5
TOLERANCE = 64 * float(jnp.finfo(jnp.float32).eps)
STATISTICS = {
    "clipped": hs.clipped_mean(BOUND),
    "cosines": hs.mean_of(jnp.cos),
    "norms": hs.norms(),
    "own": hs.per_example(),
    "squares": hs.second_moment(),
}


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_right(found, own):
    """The gradient and each statistic; rows in the order of the examples."""
    gradient, statistics = found
    norms = np.linalg.norm(own.reshape(len(own), -1), axis=1)
    expected = {
        "clipped": np.tensordot(np.minimum(1, BOUND / norms), own, 1) / len(own),
        "cosines": np.cos(own).mean(0),
        "norms": norms,
        "own": own,
        "squares": (own**2).mean(0),
    }
    np.testing.assert_allclose(gradient, own.mean(0), rtol=TOLERANCE, atol=TOLERANCE)
    for name, value in expected.items():
        close = {"rtol": TOLERANCE, "atol": TOLERANCE * max(1, np.abs(value).max())}
        np.testing.assert_allclose(statistics[name], value, **close, err_msg=name)


def dense(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, (1, 2)))


@given(st.integers(1, 9), st.integers(1, 10), st.integers(1, 10), st.booleans())
def test_any_chunk_and_shards(size, chunk, shards, reuse):
    """Those that divide the batch, those that do not, and those beyond it."""
    with pytest.MonkeyPatch.context() as patch:
        chunking = dataclasses.replace(roofline("cpu"), widest_chunk=chunk, batched=1)
        patch.setitem(rooflines.ROOFLINES, "cpu", chunking)
        w, x = draw(0, WIDTH, WIDER), draw(1, size, LENGTH, WIDTH)
        how = {"strategy": "loop", "shards": shards, "reuse_gradient": reuse}
        found = hs.grad(dense, statistics=STATISTICS, **how)(w, x)
        assert_right(found, own_gradients(dense, w, x))
