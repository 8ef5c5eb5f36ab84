"""Norms and clipped means wherever the norm is normal, of any operands, by XLA's default flags.

This folder alone tests the ends of the range of floats, and float16.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.terms import scaling
from hlo_surgery.requests.options import ROOFLINES
from tests.products import covering

KINDS = [np.float32, np.float64, ml_dtypes.bfloat16, np.float16]
STRATEGIES = ["auto", "ghost", "lift", "loop"]


DEVICES = {
    "cpu": {},
    # One branch of two, which float32 decides.
    "cpu, large": {},
    # Squares of float32 where gradients are lifted; inner products of bfloat16 as it is.
    "tpu": {"fuses_lifted": True, "narrow_operands": True},
}


@pytest.fixture(params=DEVICES, autouse=True)
def device(request, monkeypatch):
    """As planned for each kind of device."""
    here = replace(ROOFLINES["cpu"], **DEVICES[request.param])
    monkeypatch.setitem(ROOFLINES, "cpu", here)
    if request.param != "cpu":
        monkeypatch.setattr(scaling, "FEW", 0)
    return request.param


def spread(kind, positions, step, squared=False):
    """Operands have any two exponents, so long as their product is a normal number; or, `squared`,
    the squares of these.
    """
    limits, part = ml_dtypes.finfo(kind), 2 if squared else 1
    low, high = limits.minexp // part + 6, limits.maxexp // part - 1
    exponents = range(low, high + 1, max(1, (high - low) // step))
    pairs = [(i, j) for i in exponents for j in exponents if low + 8 < i + j < high - 2]
    draw = np.random.default_rng(0)
    x, y = (
        draw.uniform(1, 1.99, (len(pairs), positions, n)) * draw.choice([-1, 1], n) for n in (3, 2)
    )
    for b, (i, j) in enumerate(pairs):
        x[b], y[b] = np.ldexp(x[b], i), np.ldexp(y[b], j)
    return x.astype(kind), y.astype(kind)


def loss(w, x, y):
    return jnp.sum((x @ w) * y)


def gradients(x, y):
    return np.einsum("bti,btj->bij", x.astype(np.longdouble), y.astype(np.longdouble))


def lengths(g):
    return np.sqrt((g**2).sum((1, 2)))


def found_by(asked, strategy, x, y):
    how = {"loss_reduction": "sum", "strategy": strategy}
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=asked, **how)
    return f(jnp.zeros((x.shape[2], y.shape[2]), x.dtype), x, y)[1]


@pytest.mark.parametrize(
    ("kind", "strategy", "positions"), covering(list(KINDS), list(STRATEGIES), [1, 2], together=2)
)
def test_norms_over_all_exponents(kind, strategy, positions, device):
    with jax.enable_x64(kind is np.float64):
        squared = kind is np.float64 or (device == "tpu" and kind is not np.float16)
        x, y = spread(kind, positions, 7, squared)
        asked = (
            {"two": hs.norms()}
            if strategy == "ghost"
            else {"two": hs.norms(), "thousand": hs.norms(ord=1000)}
        )
        found = found_by(asked, strategy, x, y)
        g = gradients(x, y)
        rounding = 4 * float(ml_dtypes.finfo(kind).eps)
        np.testing.assert_allclose(found["two"], lengths(g).astype(float), rtol=rounding)
        if strategy != "ghost":
            largest = np.abs(g).max((1, 2))
            thousand = largest * ((np.abs(g) / largest[:, None, None]) ** 1000).sum((1, 2)) ** 1e-3
            np.testing.assert_allclose(found["thousand"], thousand.astype(float), rtol=rounding)


@pytest.mark.parametrize(("strategy", "positions"), covering(list(STRATEGIES), [1, 2]))
def test_clipped_means_over_all_exponents(strategy, positions, device):
    x, y = spread(np.float32, positions, 7, device == "tpu")
    # Of larger ones the weight is no normal number; beside larger operands products are lost, whose
    # other operand with its weight is none (docs/statistics.md, rounding).
    operands = np.maximum(np.abs(x).max((1, 2)), np.abs(y).max((1, 2)))
    kept = (lengths(gradients(x, y)) < 1e30) & (operands < 1e19)
    x, y = x[kept], y[kept]
    clipped = found_by(hs.clipped_mean(1.0), strategy, x, y)
    g = gradients(x, y)
    expected = (g / np.maximum(1, lengths(g))[:, None, None]).sum(0) / len(g)
    np.testing.assert_allclose(clipped, expected.astype(float), rtol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_example_escapes_the_bound(strategy, device):
    """Also where its norm is beyond all numbers."""
    x, y = (np.full((6, 1, 3), 1e38, np.float32) * np.float32(s) for s in (3, 1))
    x[:, 0] *= np.float32([1e-3, 1e-1, 1, 0, 1, 1])[:, None]
    y[:, 0] *= np.float32([1e-38, 1e-38, 1e-38, 1, 1e-2, 1])[:, None]
    found = found_by({"norms": hs.norms(), "clipped": hs.clipped_mean(1.0)}, strategy, x, y)
    lost = lengths(gradients(x, y)) > np.finfo(np.float32).max
    assert device == "tpu" or np.array_equal(np.isinf(found["norms"]), lost)
    assert np.linalg.norm(6 * np.float64(found["clipped"])) <= 6 * (1 + 1e-6)
