"""Ghost norms: norms of the examples' gradients from their products' factors, none in memory."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from tests.statistics.statistic_models import draws, in_float64

B, T, D, F, ROWS = 3, 2, 20, 12, 16
DRAW = draws(0)
W, H, C = DRAW(D, F), DRAW(B, T, D), DRAW(B, T, F)
# No sum of a product here has more terms than this.
ROUNDING = 64 * float(np.finfo(np.float32).eps)
# Ids repeat within an example; the last two are no rows.
IDS = np.array([[3, 3], [0, ROWS], [5, -ROWS - 1]], np.int32)


def dense(w, h, c):
    return jnp.einsum("btd,btf->df", h, c)


def bias(w, c):
    return c.sum((0, 1))


def moved(w, h, c):
    """Transposed, negated, scaled, divided by a number of the parameters, and padded."""
    g = -dense(w, h, c).T * 3 / w[0, 0]
    return lax.pad(g, jnp.zeros((), g.dtype), [(1, 0, 0), (0, 2, 1)])


def two_products(w, h, c):
    return dense(w, h, c) + -2 * jnp.einsum("btf,btd->fd", jnp.sin(c), jnp.cos(h)).T


def heads(w, h, c):
    return jnp.einsum(
        "btnd,btnf->ndf", h.reshape(*h.shape[:2], 2, -1), c.reshape(*c.shape[:2], 2, -1)
    )


def experts(w, h, c):
    """Which have a row of each example."""
    return jnp.einsum("bed,bef->edf", h, c)


def looked_up(h, ids):
    return jnp.zeros((ROWS, D), h.dtype).at[ids].add(h, mode="drop")


def embedding(w, h, ids):
    return looked_up(h, ids)


def tied(w, h, ids, x, z):
    """An embedding that is the head, too."""
    return looked_up(h, ids) + jnp.einsum("btd,btv->dv", x, z).T


def convolution(w, x, c):
    """The gradient by a kernel of 2 x 2."""

    def convolve(kernel):
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return jax.vjp(convolve, jnp.zeros((2, 2, x.shape[3], c.shape[3]), x.dtype))[1](c)[0]


TIED = (H, IDS, DRAW(B, T, D), DRAW(B, T, ROWS))
GHOSTLY = {
    **{f.__name__: (f, (H, C)) for f in (dense, moved, two_products, heads, experts)},
    "one position": (dense, (H[:, :1], C[:, :1])),
    "bias of one position": (bias, (C[:, :1],)),
    "embedding": (embedding, TIED[:2]),
    "tied": (tied, TIED),
    "convolution": (convolution, (DRAW(B, 3, 3, 12), DRAW(B, 2, 2, 12))),
}


def with_statistics(f, arguments, statistics, strategy="auto"):
    asked = {"statistics": statistics, "strategy": strategy, "loss_reduction": "sum"}
    return hs.rewrite(f, batch_argnums=tuple(range(1, 1 + len(arguments))), **asked)


def shares(f, w, arguments):
    """What each example adds to the sum, in float64."""
    with jax.enable_x64(True):
        wide, *rest = (jnp.asarray(x) for x in in_float64((w, *arguments)))
        return np.stack([f(wide, *(x[b : b + 1] for x in rest)) for b in range(len(rest[0]))])


def lengths(gradients):
    return np.linalg.norm(gradients.reshape(len(gradients), -1), axis=1)


def tensors(op):
    """The sizes of all values made in an op, but for branches taken where shares have cancelled."""
    if op.name not in ("stablehlo.case", "stablehlo.if"):
        yield from (
            math.prod(mlir.shape(result)) for result in op.results if op.name != "func.func"
        )
        for region in op.regions:
            for block in region.blocks:
                for inner in mlir.operations(block):
                    yield from tensors(inner)


@pytest.mark.first(2)
@pytest.mark.parametrize(("f", "arguments"), GHOSTLY.values(), ids=GHOSTLY.keys())
def test_norms_are_exact_and_hold_no_examples_gradient(f, arguments):
    g = shares(f, W, arguments)
    rewritten = with_statistics(
        f, arguments, {"norms": hs.norms(), "clipped": hs.clipped_mean(1.0)}, "ghost"
    )
    gradient, found = rewritten(W, *arguments)
    np.testing.assert_allclose(found["norms"], lengths(g), rtol=ROUNDING)
    close = {"rtol": 0, "atol": ROUNDING * np.abs(g).max()}
    np.testing.assert_allclose(gradient, g.sum(0), **close)
    clip = np.minimum(1, 1 / lengths(g)).reshape(-1, *[1] * (g.ndim - 1))
    np.testing.assert_allclose(found["clipped"], (clip * g).mean(0), **close)
    if f is not bias:
        main = mlir.main_function(rewritten.module(W, *arguments).code)
        assert max(tensors(main.operation)) < g.size


def cancelling(size):
    """Two positions cancel, in whole numbers; a third, of `size`, is left; in the last none."""
    h, c = np.round(4 * H), np.round(4 * C)
    first, second = np.concatenate([h[:, :1], -h[:, :1]], 1), np.concatenate([c[:, :1]] * 2, 1)
    small = size * H[:, 1:] * np.array([1, 1, 0], np.float32)[:, None, None]
    return np.concatenate([first, small], 1).astype(np.float32), np.concatenate(
        [second, C[:, 1:]], 1
    )


@cache
def cancelling_norms(f):
    """The function that all sizes are given to, compiled once."""
    return with_statistics(f, (H, C), hs.norms(), "ghost")


@pytest.mark.first(2)
@pytest.mark.parametrize("size", [1e-3, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("f", [dense, moved])
def test_what_cancellation_leaves_is_exact(f, size):
    """From pairs of positions the squares would be lost in the roundings of terms near 1."""
    arguments = cancelling(size)
    _, found = cancelling_norms(f)(W, *arguments)
    expected = lengths(shares(f, W, arguments))
    assert expected[-1] == 0
    np.testing.assert_allclose(found, expected, rtol=1e-3)
