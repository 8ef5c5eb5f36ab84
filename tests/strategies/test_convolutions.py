"""The only test of filters whose gradients a loop over examples has from XLA's own convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir

B, FEATURES = 6, 32
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
# Shapes of an image and of the filter, and how it goes over the image.
WAYS = {
    "same": ((7, 8, 3), (3, 3, 3, FEATURES), {}),
    "strided": ((9, 8, 3), (3, 3, 3, FEATURES), {"window_strides": (2, 2)}),
    "strided in places": ((9, 8, 3), (1, 1, 3, FEATURES), {"window_strides": (2, 3)}),
    "dilated": ((9, 8, 3), (3, 2, 3, FEATURES), {"rhs_dilation": (2, 1)}),
    "padded at an end": ((7, 8, 3), (3, 2, 3, FEATURES), {"padding": ((2, 0), (0, 1))}),
    "features first": ((3, 7, 8), (FEATURES, 3, 3, 3), {"dimension_numbers": NCHW}),
    "image dilated": ((4, 5, 3), (3, 3, 3, FEATURES), {"lhs_dilation": (2, 2)}),
    "in groups": ((7, 8, 4), (3, 3, 2, FEATURES), {"feature_group_count": 2}),
    "row": ((9, 3), (3, 3, FEATURES), {"dimension_numbers": ("NWC", "WIO", "NWC")}),
}
BY_LIBRARY = ["same", "strided", "dilated", "padded at an end", "features first"]


def loss_of(way):
    def loss(filters, images):
        spatial = filters.ndim - 2
        numbers = {"dimension_numbers": NHWC, "padding": ((1, 1),) * spatial}
        numbers |= {"window_strides": (1,) * spatial} | way
        return jnp.mean(jnp.sin(lax.conv_general_dilated(images, filters, **numbers)))

    return loss


def drawn(image, filters):
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], filters), jax.random.normal(keys[1], (B, *image))


def asked(loss, strategy):
    return hs.grad(loss, batch_argnums=1, statistics=hs.second_moment(), strategy=strategy)


@pytest.mark.first(2)
@pytest.mark.parametrize("strategy", ["loop", "lift"])
@pytest.mark.parametrize("name", WAYS)
def test_examples_have_what_one_alone_gives(name, strategy):
    image, filters, way = WAYS[name]
    with jax.enable_x64(True):
        w, images = (x.astype(jnp.float64) for x in drawn(image, filters))
        loss = loss_of(way)
        each = jax.vmap(lambda image: jax.grad(loss)(w, image[None]))(images)
        gradient, squares = asked(loss, strategy)(w, images)
        np.testing.assert_allclose(gradient, each.mean(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(squares, (each**2).mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.first(2)
@pytest.mark.parametrize("name", WAYS)
def test_only_filters_over_images_are_xla_s_own(name):
    image, filters, way = WAYS[name]
    f = asked(loss_of(way), "loop")
    ops = mlir.all_operations(f.module(*drawn(image, filters)).code)
    looped = [op for op in ops if op.name == "stablehlo.convolution" and mlir.enclosing_loops(op)]
    assert bool(looped) == (name in BY_LIBRARY)
