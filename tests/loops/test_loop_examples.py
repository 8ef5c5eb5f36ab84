"""Loops over examples: any chunk, shards and B; each number as from one example at a time.

The references are in float64. Elements are sums of at most 64 terms of size about 1 in float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hlo_surgery as hs
from hlo_surgery.requests import options as rooflines
from hlo_surgery.requests.options import roofline

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


def _chunking(widest):
    return dataclasses.replace(roofline("cpu"), widest_chunk=widest, batched=1)


def own_gradients(loss, w, x, axis=0):
    with jax.enable_x64(True):
        w, x = w.astype(np.float64), x.astype(np.float64)
        alone = jax.vmap(lambda one: jax.grad(loss)(w, jnp.expand_dims(one, axis)), axis)
        return np.asarray(jax.jit(alone)(x))


def assert_right(found, own, asked):
    """The gradient and each statistic; rows in the order of the examples."""
    gradient, statistics = found
    size = len(own)
    norms = np.linalg.norm(own.reshape(size, -1), axis=1)
    with np.errstate(divide="ignore"):
        weights = np.minimum(1, BOUND / norms)
    expected = {
        "clipped": np.tensordot(weights, own, 1) / size if own.size else own.sum(0),
        "cosines": np.cos(own).mean(0),
        "norms": norms,
        "own": own,
        "squares": (own**2).mean(0),
    }
    np.testing.assert_allclose(gradient, own.mean(0), rtol=TOLERANCE, atol=TOLERANCE)
    for name in asked:
        scale = max(1, np.abs(expected[name]).max(initial=0))
        np.testing.assert_allclose(
            statistics[name], expected[name], rtol=TOLERANCE, atol=TOLERANCE * scale
        )


def assert_looped(loss, w, x, asked=STATISTICS, axis=0, **how):
    f = hs.grad(loss, in_axes=axis, statistics=asked, strategy="loop", **how)
    assert_right(f(w, x), own_gradients(loss, w, x, axis), asked)
    return f.explain(w, x).outputs[0]


def dense(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, (1, 2)))


@given(st.integers(1, 9), st.integers(1, 10), st.integers(1, 10), st.booleans())
def test_any_chunk_and_shards(size, chunk, shards, reuse):
    """Those that divide the batch, those that do not, and those beyond it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rooflines.ROOFLINES, "cpu", _chunking(chunk))
        w, x = draw(0, WIDTH, WIDER), draw(1, size, LENGTH, WIDTH)
        assert_looped(dense, w, x, shards=shards, reuse_gradient=reuse)
