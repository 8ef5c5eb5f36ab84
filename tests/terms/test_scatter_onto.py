"""Scatter onto: a table both looked up and multiplied by, in one scatter into the contraction.

The references are gradients of one example at a time in float64. An element of a gradient is a sum
over at most LENGTH positions and ROWS rows of terms of size about 1, and the phis compared have
slopes of at most 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering

B, LENGTH, ROWS, WIDTH = 4, 5, 7, 3
TOLERANCE = 8 * LENGTH * ROWS * float(jnp.finfo(jnp.float32).eps)
rng = np.random.default_rng(0)
TABLE = rng.uniform(-1, 1, size=(ROWS, WIDTH)).astype(np.float32)
FACTORS = rng.uniform(-1, 1, size=(B, LENGTH, ROWS)).astype(np.float32)
# Tokens repeat within an example and across examples; rows 4 to 6 are looked up by nobody.
IDS = rng.integers(0, 4, (B, LENGTH))
OUTSIDE = IDS.copy()
OUTSIDE[[0, 1, 2], [0, 1, 2]], OUTSIDE[3] = [ROWS + 3, -2, -ROWS - 5], 100


def multiplied(h, w, factors):
    """The mean over the examples of what a head of the table itself makes."""
    return jnp.sum(jnp.tanh(h @ w.T) * factors[..., : w.shape[0]]) / factors.shape[0]


def tied(w, ids, factors):
    return multiplied(w[ids], w, factors)


def of_mode(mode):
    return lambda w, ids, factors: multiplied(w.at[ids].get(mode=mode, fill_value=0.25), w, factors)


def transposed(w, ids, factors):
    return multiplied(w.T[:, ids].transpose(1, 2, 0), w, factors)


def scaled(w, ids, factors):
    return multiplied((-0.5 * w)[ids], w / 3, factors)


def looked_up_twice(w, ids, factors):
    return multiplied(w[ids] * w[(ids + 1) % ROWS], w, factors)


def multiplied_twice(w, ids, factors):
    return multiplied(jnp.sin(w[ids] @ w.T) @ w, w, factors)


def decayed(w, ids, factors):
    return tied(w, ids, factors) + 0.1 * jnp.sum(w**2)


def of_a_function(w, ids, factors):
    """What moves the gradient is behind the sum."""
    own = jnp.where(w > 0, w, 0.5 * w)
    return multiplied(own[ids], own, factors)


LOSSES = {
    "tied": (tied, IDS),
    "clip": (of_mode("clip"), OUTSIDE),
    "fill": (of_mode("fill"), OUTSIDE),
    "one row": (lambda w, ids, c: tied(w[:1], 0 * ids, c), IDS),
    "the same row everywhere": (tied, 0 * IDS + 2),
    "one position": (tied, IDS[:, :1]),
    "transposed": (transposed, IDS),
    "scaled": (scaled, IDS),
    "looked up twice": (looked_up_twice, IDS),
    "multiplied twice": (multiplied_twice, IDS),
    "decayed": (decayed, IDS),
    "a nonlinear table": (of_a_function, IDS),
}
STATISTICS = {
    "cosines": hs.mean_of(jnp.cos),
    "squares": hs.second_moment(),
    "own": hs.per_example(),
}


def own_gradients(loss, w, *batch):
    """Each example's gradient, alone in a batch of one, in float64."""
    with jax.enable_x64(True):
        w, *batch = (
            x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x for x in (w, *batch)
        )
        alone = jax.vmap(lambda *example: jax.grad(loss)(w, *(x[None] for x in example)))
        return np.asarray(jax.jit(alone)(*batch))


def assert_right(found, own, size=B):
    expected = {"cosines": np.cos(own).sum(0) / size, "squares": (own**2).sum(0) / size, "own": own}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize(("name", "strategy"), covering(list(LOSSES), ["lift", "loop"]))
def test_tables(name, strategy):
    loss, ids = LOSSES[name]
    factors = FACTORS[:, : ids.shape[1]]
    f = hs.grad(
        loss, batch_argnums=(1, 2), statistics=STATISTICS, strategy=strategy, reuse_gradient=True
    )
    gradient, found = f(TABLE, ids, factors)
    own = own_gradients(loss, TABLE, ids, factors)
    np.testing.assert_allclose(gradient, own.mean(0), rtol=TOLERANCE, atol=TOLERANCE)
    assert_right(found, own)
