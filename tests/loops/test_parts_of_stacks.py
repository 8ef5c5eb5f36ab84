"""Stacked layers of which a scan uses a part: the others' gradient is 0, and phi(0) counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

LAYERS = 4
W = np.random.default_rng(0).normal(size=(LAYERS, 3, 3)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)

PARTS = {
    "every layer": lambda w: w,
    "first": lambda w: w[: LAYERS - 1],
    "last": lambda w: w[1:],
    "every other": lambda w: w[::2],
    "reversed": lambda w: w[::-1][1:],
    "columns": lambda w: jnp.pad(w[:, :, 1:], ((0, 0), (0, 0), (0, 1))),
    "of longer": lambda w: jnp.pad(w, ((0, 1), (0, 0), (0, 0))),
    "gathered": lambda w: w[jnp.array([2, 0])],
    "twice": lambda w: jnp.concatenate([w[1:], w[:2]]),
    "updated": lambda w: w.at[1].set(0.5),
    "masked": lambda w: w * jnp.arange(LAYERS)[:, None, None],
    "chosen": lambda w: jnp.where(jnp.arange(LAYERS)[:, None, None] == 2, 0.1, w),
    "sliced": lambda w: jax.lax.dynamic_slice_in_dim(w, jnp.int32(1), 2),
}


def loss(w, x, part):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    return jnp.mean(jax.lax.scan(layer, x, PARTS[part](w))[0] ** 2, 1).mean()


def cosine(g):
    return jnp.cos(100 * g)


def one(g):
    return g**0


@pytest.mark.parametrize("part", PARTS)
def test_what_is_left_out_has_phi_of_zero(part):
    asked = {
        "cosine": hs.mean_of(cosine),
        "one": hs.mean_of(one, factorable=True),
        "square": hs.second_moment(),
    }
    found = hs.grad(lambda w, x: loss(w, x, part), statistics=asked)(W, X)[1]
    g = jax.jit(jax.vmap(jax.grad(lambda w, x: loss(w, x[None], part)), (None, 0)))(W, X)
    np.testing.assert_allclose(
        found["cosine"], np.mean(np.cos(100 * np.float64(g)), 0), rtol=0, atol=2e-5
    )
    np.testing.assert_allclose(found["one"], np.ones_like(W))
    np.testing.assert_allclose(
        found["square"], np.mean(np.float64(g) ** 2, 0), rtol=1e-4, atol=1e-12
    )
