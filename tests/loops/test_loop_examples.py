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
from jax import lax
from jax.scipy.linalg import solve_triangular

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


@pytest.fixture
def chunks_of(monkeypatch):
    """Lets a loop on CPU take so many examples at a time."""

    def let(widest):
        monkeypatch.setitem(rooflines.ROOFLINES, "cpu", _chunking(widest))

    return let


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


def mapped(w, x):
    return jnp.mean(lax.map(lambda one: jnp.sum(jnp.tanh(one @ w) ** 2), x))


def vmapped_flat(w, x):
    flat = jnp.tanh(x.swapaxes(0, 1).reshape(-1, WIDTH) @ w)
    return jnp.sum(flat**2) / x.shape[0]


def decayed(w, x):
    return dense(w, x) + 0.1 * jnp.sum(w**2)


def recurrent(w, x):
    start = jnp.zeros((x.shape[0], WIDER), x.dtype)
    state, _ = lax.scan(lambda h, at: (jnp.tanh(h + at @ w), None), start, x.swapaxes(0, 1))
    return jnp.mean(jnp.sum(state**2, -1))


@pytest.mark.parametrize("loss", [mapped, vmapped_flat, decayed, recurrent])
def test_programs(loss, chunks_of):
    chunks_of(2)
    assert_looped(loss, draw(0, WIDTH, WIDER), draw(1, B, LENGTH, WIDTH), shards=2)


LOWER = np.tril(draw(7, WIDTH, WIDTH)) * 0.3 + 2 * np.eye(WIDTH, dtype=np.float32)


def solved(w, x):
    return dense(solve_triangular(LOWER.astype(w.dtype), w, lower=True), x)


@pytest.mark.parametrize("shards", [1, 4])
def test_what_vmap_cannot_lift_goes_one_by_one(shards, chunks_of):
    """A LAPACK call on the way to the gradient."""
    chunks_of(4)
    plan = assert_looped(solved, draw(0, WIDTH, WIDER), draw(1, B, LENGTH, WIDTH), shards=shards)
    assert "stablehlo.custom_call" in plan.tail
    assert plan.chunk == 1


def convolution(numbers=None, **how):
    options = {"window_strides": (1, 1), "padding": "SAME"} | how

    def loss(w, x):
        made = lax.conv_general_dilated(x, w, dimension_numbers=numbers, **options)
        return jnp.sum(jnp.tanh(made) ** 2) / x.shape[0]

    return loss


def transposed(w, x):
    made = lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.sum(jnp.tanh(made) ** 2) / x.shape[0]


def examples_in_channels(w, x):
    """Each example is a group of channels of a single image."""
    size = x.shape[0]
    kernels = jnp.tile(w, (size, 1, 1))
    made = lax.conv_general_dilated(
        x.reshape(1, -1, x.shape[-1]), kernels, (1,), "SAME", feature_group_count=size
    )
    return jnp.sum(jnp.tanh(made) ** 2) / size


def grouped_batch(w, x):
    flat = x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
    made = lax.conv_general_dilated(flat, w, (1,), "SAME", batch_group_count=2)
    return jnp.sum(jnp.tanh(made) ** 2) / x.shape[0]


CONVOLUTIONS = {
    "1D": (convolution(window_strides=(2,)), (3, 2, 3), (B, 2, 7)),
    "dilated": (convolution(rhs_dilation=(2, 2)), (3, 2, 3, 3), (B, 2, 6, 6)),
    "strides, negative padding": (
        convolution(window_strides=(2, 3), padding=((-1, 2), (1, -1))),
        (3, 2, 2, 3),
        (B, 2, 7, 8),
    ),
    "transposed": (transposed, (3, 3, 2, 3), (B, 3, 3, 2)),
    "groups of features": (convolution(feature_group_count=2), (4, 2, 3, 3), (B, 4, 4, 4)),
    "groups of the batch": (grouped_batch, (4, 3, 2), (B, 2, 3, 5)),
    "examples in channels": (examples_in_channels, (3, 2, 3), (B, 2, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, chunks_of):
    """Each step lifts a convolution over the examples of its chunk and over the shards."""
    chunks_of(2)
    loss, filters, images = CONVOLUTIONS[name]
    w, x = draw(0, *filters) / 2, draw(1, *images)
    assert_looped(
        loss, w, x, {"own": STATISTICS["own"], "squares": STATISTICS["squares"]}, shards=2
    )
