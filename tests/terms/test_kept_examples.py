"""Rows of one example, taken out of operands wherever they lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, PARTS = 6, 3


def contribution(kernel, images):
    layout = ("NHWC", "HWIO", "NHWC")
    made = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=layout)
    return jnp.mean(jnp.sum(jnp.tanh(made) ** 2, (1, 2, 3)))


def accumulated(kernel, images):
    def step(total, part):
        return total + jax.grad(contribution)(kernel, part) / PARTS, None

    parts = images.reshape(PARTS, B // PARTS, *images.shape[1:])
    return lax.scan(step, jnp.zeros_like(kernel), parts)[0]


@pytest.mark.parametrize(
    ("window", "image"),
    [
        pytest.param(2, (3, 2), id="as wide as the image"),
        pytest.param(3, (2, 2), id="wider than the image"),
        pytest.param(2, (5, 4), id="smaller than the image"),
    ],
)
def test_windows_of_any_size_leave_examples_rows_apart(window, image):
    """Shardy's rule does not say what such a window's dimensions count by, and need not."""
    draw = np.random.default_rng(0)
    kernel = jnp.asarray(draw.normal(size=(window, window, 2, 2)), jnp.float32)
    images = jnp.asarray(draw.normal(size=(B, *image, 2)), jnp.float32)
    f = hs.rewrite(accumulated, batch_argnums=1, statistics=hs.gram())
    own = [jax.grad(contribution)(kernel, images[b : b + 1]).ravel() for b in range(B)]
    wanted = np.stack(own) @ np.stack(own).T
    np.testing.assert_allclose(f(kernel, images)[1], wanted, rtol=1e-4, atol=1e-4 * wanted.max())
