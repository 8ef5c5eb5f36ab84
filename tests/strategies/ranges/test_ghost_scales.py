"""Ghost norms of uneven and low-precision gradients, and gradients that they do not apply to."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering
from tests.strategies.test_ghost_norms import (
    GHOSTLY,
    ROUNDING,
    C,
    H,
    W,
    dense,
    lengths,
    moved,
    shares,
    two_products,
    with_statistics,
)

SCALES = np.array([1e-20, 1, 1e20], np.float32)[:, None, None]


def ghost_norms(f, arguments):
    return np.asarray(with_statistics(f, arguments, hs.norms(), "ghost")(W, *arguments)[1])


@pytest.mark.parametrize(
    "name", ["dense", "moved", "heads", "one position", "embedding", "bias of one position"]
)
def test_examples_of_uneven_scales(name):
    """No square of theirs would be a float32."""
    f, (first, *others) = GHOSTLY[name]
    arguments = (first * SCALES, *others)
    found = ghost_norms(f, arguments)
    np.testing.assert_allclose(found, lengths(shares(f, W, arguments)), rtol=ROUNDING)


@pytest.mark.parametrize(
    ("scales", "positions"), covering([(1e-25, 1e22), (1e22, 1e-25), (1e-18, 1e-15)], [1, 2])
)
def test_factors_of_uneven_scales(positions, scales):
    """Squares of either factor would over- or underflow, and those of the product need not."""
    arguments = tuple(np.float32(s) * x[:, :positions] for s, x in zip(scales, (H, C), strict=True))
    asked = {"norms": hs.norms(), "squares": hs.second_moment(), "one": hs.norms(ord=1)}
    _, found = with_statistics(dense, arguments, asked)(W, *arguments)
    g = shares(dense, W, arguments)
    np.testing.assert_allclose(found["norms"], lengths(g), rtol=ROUNDING)
    np.testing.assert_allclose(found["one"], np.abs(g).sum((1, 2)), rtol=ROUNDING)
    # The squares of the smallest gradients are no numbers of float32.
    squares, least = (g**2).mean(0), float(np.finfo(np.float32).tiny)
    np.testing.assert_allclose(
        found["squares"], squares, rtol=0, atol=ROUNDING * squares.max() + least
    )


@pytest.mark.parametrize("f", [dense, moved, two_products])
def test_low_precision_parameters(f):
    """Norms of bfloat16 gradients are float32; where they weigh gradients, they are those of the
    same roundings, of which a contraction alone has none.
    """
    w, *arguments = (x.astype(ml_dtypes.bfloat16) for x in (W, H, C))
    alone = with_statistics(f, arguments, {"norms": hs.norms()}, "ghost")
    rewritten = with_statistics(
        f,
        arguments,
        {"norms": hs.norms(), "clipped": hs.clipped_mean(1.0)},
        "ghost" if f is dense else "auto",
    )
    gradient, found = rewritten(w, *arguments)
    assert gradient.dtype == jnp.bfloat16
    assert found["norms"].dtype == found["clipped"].dtype == jnp.float32
    wide = [x.astype(np.float32) for x in arguments]
    g = shares(f, w.astype(np.float32), wide)
    # A gradient in bfloat16 is rounded some three times: in a product, in the scale, in a sum.
    rounding = ROUNDING if f is dense else 3 * float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
    for norms in (found["norms"], alone(w, *arguments)[1]["norms"]):
        np.testing.assert_allclose(norms, lengths(g), rtol=rounding)
    clipped = np.mean(g / np.maximum(1, lengths(g))[:, None, None], 0)
    np.testing.assert_allclose(
        found["clipped"], clipped, rtol=0, atol=rounding * np.abs(clipped).max()
    )


def part(w, h, c):
    return dense(w, h, c)[1:, ::2]


@pytest.mark.parametrize("scale", [1e10, 1e20])
def test_positions_of_uneven_scale(scale):
    """What is large in one factor is small in the other: every position counts, though its factors'
    squares do not.
    """
    h = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    c = np.random.default_rng(1).normal(size=(3, 2, 4)).astype(np.float32)
    h, c = (
        x * np.array(s, np.float32)[None, :, None]
        for x, s in ((h, [scale, 1 / scale]), (c, [1 / scale, scale]))
    )

    def loss(w, h, c):
        return jnp.mean(jnp.sum((h @ w) * c, (1, 2)))

    asked = {"norms": hs.norms(), "tokens": hs.token_norms(), "clipped": hs.clipped_mean(1.0)}
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=asked, strategy="ghost")
    found = f(jnp.zeros((5, 4)), h, c)[1]
    g = np.einsum("bti,btj->bij", h.astype(np.float64), c.astype(np.float64))
    tokens = np.linalg.norm(h.astype(np.float64), axis=2) * np.linalg.norm(
        c.astype(np.float64), axis=2
    )
    np.testing.assert_allclose(found["norms"], lengths(g), rtol=1e-5)
    np.testing.assert_allclose(found["tokens"], tokens, rtol=1e-5)
    clipped = np.mean(g / np.maximum(1, lengths(g))[:, None, None], 0)
    np.testing.assert_allclose(found["clipped"], clipped, rtol=0, atol=1e-5 * np.abs(clipped).max())
