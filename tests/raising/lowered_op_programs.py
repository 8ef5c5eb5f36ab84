"""Small JAX programs for ops that nobody writes by hand: (op, function, arguments)."""

import jax
import jax.numpy as jnp
from jax import lax

IMAGES, KERNEL, DEPTHWISE, GROUPED = (2, 6, 6, 4), (3, 3, 4, 6), (3, 3, 1, 4), (3, 3, 2, 6)


def gradients(function):
    """The gradients of a random-looking weighted sum of the outputs, in all float arguments."""

    def weighted_sum(*args):
        y = function(*args)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    def all_gradients(*args):
        floats = [i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jax.grad(weighted_sum, floats)(*args)

    return all_gradients


def convolve(**settings):
    settings = {
        "window_strides": (1, 1),
        "padding": "SAME",
        "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
    } | settings
    return gradients(lambda x, kernel: lax.conv_general_dilated(x, kernel, **settings))


def deconvolve(x, kernel):
    return lax.conv_transpose(x, kernel, (2, 2), "SAME", transpose_kernel=False)


def average_pool(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def f32(*shapes):
    return [(shape, "float32") for shape in shapes]


CONVOLUTION, SCATTER, GATHER = "stablehlo.convolution", "stablehlo.scatter", "stablehlo.gather"
TABLE = [((7, 3), "float32"), ((2, 5), "int32")]
ALONG = [((2, 4, 3), "float32"), ((2, 5, 3), "int32")]

PROGRAMS = {
    "convolution": (CONVOLUTION, convolve(), f32(IMAGES, KERNEL)),
    "convolution strided": (CONVOLUTION, convolve(window_strides=(2, 3)), f32(IMAGES, KERNEL)),
    "convolution valid": (CONVOLUTION, convolve(padding="VALID"), f32(IMAGES, KERNEL)),
    "convolution transposed": (CONVOLUTION, gradients(deconvolve), f32(IMAGES, KERNEL)),
    "convolution grouped": (CONVOLUTION, convolve(feature_group_count=2), f32(IMAGES, GROUPED)),
    "convolution depthwise": (CONVOLUTION, convolve(feature_group_count=4), f32(IMAGES, DEPTHWISE)),
    "convolution depthwise strided": (
        CONVOLUTION,
        convolve(feature_group_count=4, window_strides=(2, 2)),
        f32(IMAGES, DEPTHWISE),
    ),
    "convolution kernel dilated": (CONVOLUTION, convolve(rhs_dilation=(2, 2)), f32(IMAGES, KERNEL)),
    "convolution image dilated": (
        CONVOLUTION,
        convolve(lhs_dilation=(2, 1), padding=[(2, 1), (0, 2)]),
        f32(IMAGES, KERNEL),
    ),
    "convolution in batch groups": (
        CONVOLUTION,
        convolve(batch_group_count=2),
        f32(IMAGES, KERNEL),
    ),
    "embedding": (SCATTER, gradients(lambda table, ids: table[ids]), TABLE),
    "embedding looked up": (GATHER, lambda table, ids: table[ids], TABLE),
    "take along an axis": (GATHER, lambda x, i: jnp.take_along_axis(x, i, axis=1), ALONG),
    "take along an axis, gradient": (
        SCATTER,
        gradients(lambda x, i: jnp.take_along_axis(x, i, axis=1)),
        ALONG,
    ),
    "batched lookup": (GATHER, jax.vmap(lambda x, i: x[i]), [*ALONG[:1], ((2, 5), "int32")]),
    "batched lookup, gradient": (
        SCATTER,
        gradients(jax.vmap(lambda x, i: x[i])),
        [*ALONG[:1], ((2, 5), "int32")],
    ),
    "overwrite": (SCATTER, lambda x, y: x.at[:, 1:3].set(y), f32((2, 4), (2, 2))),
    "average pool": ("stablehlo.reduce_window", average_pool, f32(IMAGES)),
    "average pool, gradient": ("stablehlo.reduce_window", gradients(average_pool), f32(IMAGES)),
    "cumulative sum": ("stablehlo.reduce_window", lambda x: lax.cumsum(x, 1), f32((2, 5))),
    "attention, gradient": (
        "stablehlo.dot_general",
        gradients(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k)),
        f32((2, 3, 2, 4), (2, 5, 2, 4)),
    ),
}
