"""Squares and variances at the ends of the range: right, and finite where they are."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering
from tests.strategies.ranges.test_norm_ranges import gradients, loss

# One program for each is compiled.
ASKED = {"2": hs.second_moment(), "1": hs.mean_abs(), "3": hs.mean_power(3), "sign": hs.mean_sign()}
TRUE = {"2": np.square, "1": np.abs, "3": lambda g: g**3, "sign": np.sign}


def held(found, g, phi):
    """Against the mean of phi, where it is finite and none is lost beside its largest one."""
    each = phi(g)
    least = (
        1e3
        * np.finfo(np.float32).tiny
        * np.maximum(1, np.sqrt(np.abs(each).max((1, 2), keepdims=True)))
    )
    expected = each.mean(0)
    known = ((np.abs(each) > least) | (g == 0)).all(0) & (np.abs(each).max(0) < 1e37)
    assert known.any()
    rounding = 2e-5 * np.abs(each).mean(0)
    return np.all(np.abs(found - expected)[known] <= rounding[known])


def rows(first, second):
    """Operands of four examples, of which the elements of each have these magnitudes in turn."""
    draw = np.random.default_rng(0)
    x, y = (
        np.resize(np.float32(m), (4, 1, 4)) * draw.uniform(1, 2, (4, 1, 4)) for m in (first, second)
    )
    return x.astype(np.float32), y.astype(np.float32)


WIDE = {
    "large times small": ([1e-30, 1e-28], [1e29, 1e31]),
    "small beside large": ([1, 1e-20], [1e10, 1e9]),
    "small beside large, second": ([1e10, 1e9], [1, 1e-20]),
    "all but zero": ([0, 1e-18], [1e20, 1]),
    "zero beside what overflows": ([0, 1e-30], [1e25, 1e15]),
    "some overflow": ([1e19, 1e-19, 0, 1], [1e-14, 1e5, 0, 1]),
    "only one is large": ([0], [1e25]),
}


@cache
def squared(name):
    """The function that all ranges are given to, compiled once."""
    how = {"loss_reduction": "sum", "strategy": "square", "statistics": ASKED[name]}
    return hs.grad(loss, batch_argnums=(1, 2), **how)


@pytest.mark.parametrize("wide", WIDE)
def test_operands_of_any_range(wide):
    x, y = rows(*WIDE[wide])
    w = jnp.zeros((x.shape[2], y.shape[2]))
    found = {name: squared(name)(w, x, y)[1] for name in ASKED}
    g = gradients(x, y).astype(float)
    for name, value in found.items():
        assert held(np.float64(value), g, TRUE[name]), name


BEHIND = {
    "only behind is it a small number": (1e15, 1e15, 1e-30),
    "only behind is it a large number": (1e-15, 1e-15, 1e30),
    "its square would be zero in front": (1e-12, 1e-13, 1e10),
}


@pytest.mark.parametrize(
    ("magnitudes", "divides", "model"),
    covering(list(BEHIND), [False, True], ["dense", "bias"], together=2),
)
def test_what_is_in_range_only_behind_a_scale(magnitudes, divides, model):
    first, second, scale = BEHIND[magnitudes]
    draw = np.random.default_rng(0)
    x, y = (np.float32(m * draw.uniform(1, 2, (4, n))) for m, n in ((first, 3), (second, 5)))
    y = y if model == "dense" else y * np.float32(first)

    def loss(w, x, y):
        scaled = w / np.float32(1 / scale) if divides else w * np.float32(scale)
        return jnp.mean(jnp.sum((x @ scaled if model == "dense" else scaled) * y, 1))

    asked = {
        "second_moment": hs.second_moment(),
        "mean_abs": hs.mean_abs(),
        "variance": hs.variance(unbiased=False),
    }
    w = np.ones((3, 5) if model == "dense" else 5, np.float32)
    _, found = hs.grad(loss, batch_argnums=(1, 2), statistics=asked, strategy="square")(w, x, y)
    g = (x[:, :, None] * y[:, None].astype(float) if model == "dense" else y.astype(float)) * scale
    expected = {
        "second_moment": np.mean(g**2, 0),
        "mean_abs": np.mean(np.abs(g), 0),
        "variance": np.var(g, 0),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(np.float64(found[name]), value, rtol=2e-5, err_msg=name)
