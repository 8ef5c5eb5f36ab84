"""What a loop hands on behind barriers is what it was: `jax.checkpoint` puts one around what a step
takes, the cotangents that all steps share among it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, T, WIDTH = 4, 6, 3
STATISTICS = {"all": hs.per_example(), "norms": hs.norms(), "squares": hs.second_moment()}


def loss_in(step, hidden, y, mask):
    """The mean over all tokens that count, a chunk of them at a time."""
    whole, _ = lax.scan(jax.checkpoint(step), 0.0, (hidden, y, mask))
    return whole / jnp.sum(mask)


def chunk_loss(params, hidden, y, mask):
    return jnp.sum((jnp.tanh(hidden @ params["out"]) - y) ** 2 * mask)


def in_chunks(params, x, y, mask):
    def step(so_far, chunk):
        return so_far + chunk_loss(params, *chunk), None

    hidden = jnp.tanh(x @ params["w"]).reshape(-1, 3, WIDTH)
    return loss_in(step, hidden, y.reshape(-1, 3), mask.reshape(-1, 3))


def in_chunks_of_chunks(params, x, y, mask):
    """A loop around a loop, neither of which changes what the last division makes."""

    def inner(so_far, chunk):
        return so_far + chunk_loss(params, *chunk), None

    def outer(so_far, chunks):
        return lax.scan(jax.checkpoint(inner), so_far, chunks)[0], None

    hidden = jnp.tanh(x @ params["w"]).reshape(2, -1, 3, WIDTH)
    return loss_in(outer, hidden, y.reshape(2, -1, 3), mask.reshape(2, -1, 3))


@pytest.mark.parametrize("loss", [in_chunks, in_chunks_of_chunks])
def test_a_masked_mean_over_chunks_that_are_computed_again(loss):
    """The chunks lie across the examples, and the number of tokens is data of the batch."""
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(WIDTH, WIDTH)), "out": rng.normal(size=WIDTH)}
    x, y = rng.normal(size=(B, T, WIDTH)), rng.normal(size=(B, T))
    mask = (np.arange(T) < np.array([[6], [2], [3], [5]])).astype(float)
    gradient, found = hs.grad(loss, batch_argnums=(1, 2, 3), statistics=STATISTICS)(
        params, x, y, mask
    )

    def own(x, y, mask_of_one):
        share = lambda p: chunk_loss(p, jnp.tanh(x @ p["w"]), y, mask_of_one)  # noqa: E731
        return jax.tree.map(lambda g: B * g / mask.sum(), jax.grad(share)(params))

    every = jax.vmap(own)(x, y, mask)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731
    jax.tree.map(close, found["all"], every)
    jax.tree.map(close, gradient, jax.tree.map(lambda g: g.mean(0), every))
    jax.tree.map(close, found["squares"], jax.tree.map(lambda g: (g**2).mean(0), every))
    norms = jnp.sqrt(sum(jnp.sum(g.reshape(B, -1) ** 2, 1) for g in jax.tree.leaves(every)))
    close(found["norms"], norms)
