"""Variances far below the squared mean, by every strategy: as precise as examples' gradients."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.products import covering

B, TOKENS, ROWS = 16, 3, 4
NOISE = 1e-4
DRAW = np.random.default_rng(0)
X, U, R = (
    np.float32(1 + NOISE * DRAW.normal(size=shape)) for shape in ((B, 3), (B, 2), (B, TOKENS, 2))
)
IDS = DRAW.integers(0, ROWS, (B, TOKENS))
# One row is touched by all examples, and once by each.
IDS[:, 0], IDS[:, 1:] = 0, np.maximum(IDS[:, 1:], 1)
SHAPES = {"w": (3, 2), "b": (2,), "table": (ROWS, 2), "layers": (2, 3, 2), "untouched": (2,)}
P = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
REAL = np.arange(B) % 4 != 0


def each(p, x, u, r, ids):
    """Linear in its parameters, so that the data are the gradients."""
    h, _ = lax.scan(lambda h, layer: (h - 2 * (x @ layer), None), x @ p["w"] + p["b"], p["layers"])
    return jnp.sum(h * u, -1) + jnp.sum(p["table"][ids] * r, (1, 2)) + jnp.sum(p["untouched"])


def gradients():
    x, u, r = (a.astype(np.float64) for a in (X, U, R))
    outer = x[:, :, None] * u[:, None]
    table = np.zeros((B, ROWS, 2))
    np.add.at(table, (np.arange(B)[:, None], IDS), r)
    layers = np.stack([-2 * outer] * 2, 1)
    return {"w": outer, "b": u, "table": table, "layers": layers, "untouched": np.ones((B, 2))}


def assert_variances(found, g):
    for name, own in g.items():
        variance, rounding = own.var(0, ddof=1), 4 * np.finfo(np.float32).eps * np.abs(own).max()
        allowed = rounding**2 + 2 * rounding * np.sqrt(variance)
        assert np.all(np.abs(np.float64(found[name]) - variance) <= allowed), name


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_noise_of_a_ten_thousandth_of_the_mean(strategy):
    def loss(p, *batch):
        return jnp.mean(each(p, *batch))

    how = {"strategy": strategy, "batch_argnums": (1, 2, 3, 4)}
    f = hs.grad(loss, statistics={"v": hs.variance(), "snr": hs.snr()}, **how)
    found, g = f(P, X, U, R, IDS)[1], gradients()
    assert_variances(found["v"], g)
    snr = np.abs(g["w"].mean(0)) / g["w"].std(0, ddof=1)
    np.testing.assert_allclose(found["snr"]["w"], snr, rtol=2e-3)
    taken = {output.name: output.strategies["v"] for output in f.explain(P, X, U, R, IDS).outputs}
    contracted = {"['w']": "square", "['b']": "square", "['layers']": "square"}
    assert strategy != "auto" or taken.items() >= contracted.items()


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_padding_is_no_part_of_the_mean(strategy):
    def loss(p, x, u, r, ids, real):
        return jnp.sum(jnp.where(real, each(p, x, u, r, ids), 0))

    how = {
        "strategy": strategy,
        "loss_reduction": "sum",
        "batch_argnums": (1, 2, 3, 4, 5),
        "is_real": 5,
    }
    filled = [np.where(REAL.reshape(-1, *[1] * (a.ndim - 1)), a, np.float32(3)) for a in (X, U, R)]
    found = hs.grad(loss, statistics=hs.variance(), **how)(P, *filled, IDS, REAL)[1]
    assert_variances(found, {name: g[REAL] for name, g in gradients().items()})


@pytest.mark.parametrize(
    ("scale", "strategy"),
    covering([1e-30, 1e-25, 1e-10, 1.0, 1e10, 1e18, 1e25, 1e30], ["auto", "lift", "loop"]),
)
def test_a_ratio_is_right_or_not_a_number(scale, strategy):
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) * np.float32(scale))

    w, x = np.float32([0.3, -0.2]), np.float32(DRAW.normal(size=(B, 2)))
    found = hs.grad(loss, statistics=hs.snr(), strategy=strategy)(w, x)[1]
    own = x.astype(np.float64) / np.cosh(x.astype(np.float64) @ w)[:, None] ** 2
    snr = np.abs(own.mean(0)) / own.std(0, ddof=1)
    if 1e-15 < scale < 1e19:
        np.testing.assert_allclose(found, snr, rtol=1e-3)
    else:
        assert np.all(np.isnan(found))
