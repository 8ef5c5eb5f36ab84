"""Groups of examples that share a draw, as of DropConnect masks: the draw is no constant of all."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

GROUPS, EACH, D, LAYERS = 2, 3, 4, 2
B = GROUPS * EACH
DRAW = np.random.default_rng(0)
W, X = (np.float32(DRAW.normal(size=shape)) for shape in ((D,), (B, D)))
MASKS = np.float32([[1, 0, 1, 0], [0, 1, 1, 1]])


def rows_of(w, x):
    return jnp.mean(jnp.tanh(jnp.sum(x * w, -1)) ** 2)


def of_groups(regulariser):
    def loss(w, x):
        def one(rows, mask):
            return rows_of(w * mask, rows) + regulariser(w, mask)

        return jnp.mean(jax.vmap(one)(x.reshape(GROUPS, EACH, D), MASKS))

    return loss


def repeated(regulariser):
    """The masked weights, repeated for the examples of each group."""

    def loss(w, x):
        masked = w * MASKS
        own = jnp.broadcast_to(masked[:, None], (GROUPS, EACH, D)).reshape(B, D)
        return rows_of(own, x) + regulariser(masked)

    return loss


def layered(regulariser):
    def loss(w, x):
        def layer(h, factor):
            v = w * MASKS * factor
            return jnp.tanh(h * v[:, None]), regulariser(v)

        h, more = lax.scan(layer, x.reshape(GROUPS, EACH, D), jnp.arange(1.0, LAYERS + 1))
        return jnp.mean(jnp.sum(h, -1)) + jnp.sum(more)

    return loss


def nothing(*_):
    return 0.0


def squares(w, mask):
    return jnp.sum((w * mask) ** 2)


EXACT = {
    "masks alone": of_groups(nothing),
    "a penalty of the weights": of_groups(lambda w, mask: jnp.sum(w**2)),
    "repeated masks alone": repeated(nothing),
    "masks in a scan": layered(nothing),
    "masks in a scan, and a penalty outside": lambda w, x: layered(nothing)(w, x) + jnp.sum(w**2),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_rests_on_examples_is_given_to_them(name):
    """An example of zeros adds nothing to these gradients."""
    found = hs.grad(EXACT[name], statistics=hs.per_example())(W, X)[1]
    alone = jnp.eye(B)[:, :, None] * X
    constant = jax.grad(EXACT[name])(W, jnp.zeros_like(X))
    own = jax.jit(jax.vmap(jax.grad(EXACT[name]), (None, 0)))(W, alone) - constant
    np.testing.assert_allclose(found, B * own + constant, rtol=1e-4, atol=1e-5)


def test_masks_passed_row_by_row_are_the_examples_own():
    """The way out that the refusal names."""

    def loss(w, x, masks):
        return jnp.mean(jax.vmap(partial(one_example, w))(x, masks))

    def one_example(w, row, mask):
        return rows_of(w * mask, row) + squares(w, mask)

    own = jnp.repeat(MASKS, EACH, 0)
    found = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.per_example())(W, X, own)[1]
    expected = jax.vmap(jax.grad(one_example), (None, 0, 0))(W, X, own)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
