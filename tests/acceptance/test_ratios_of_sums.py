"""Sums over examples that divide or scale others: squares by contraction tell them from gradients.

The loss is linear enough in its parameters to be given a copy of them for each example; what is
asked with `on_mixing="contribution"` is then the gradient to that copy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering

B = 4
DRAW = np.random.default_rng(0)
X, Y, R = (np.float32(DRAW.normal(size=shape)) for shape in ((B,), (B,), (B, 3)))
P = {"s": np.float32(0.7), "t": np.float32(1.3), "w": np.float32(DRAW.normal(size=3))}


def ratio(q, u):
    return jnp.sum(q) / jnp.sum(q**2) * jnp.sum(u**2)


def rows(p, r):
    return jnp.sum(r * p["w"], -1)


LOSSES = {
    "of two gradients": lambda p, x, y, r: ratio(x * p["s"], y * p["t"]) + jnp.sum(rows(p, r)),
    "of data": lambda p, x, y, r: (
        ratio(x, rows(p, r)) + jnp.mean(jnp.sum(p["w"] ** 2, -1)) + jnp.sum(p["s"] * p["t"] * y)
    ),
    "of one gradient": lambda p, x, y, r: (
        ratio(rows(p, r), rows(p, r)) + jnp.sum(p["s"] * x * p["t"])
    ),
    "products": lambda p, x, y, r: (
        jnp.sum(jnp.tanh(x * p["s"])) * jnp.sum(y * p["t"]) * jnp.sum(rows(p, r))
    ),
    "of columns": lambda p, x, y, r: (
        jnp.sum(jnp.sum(r * p["w"], 0) ** 2) / jnp.sum(x * p["s"]) ** 2 + jnp.sum(p["t"] * y)
    ),
}
STATISTICS = {
    "square": hs.second_moment(),
    "sign": hs.mean_sign(),
    "each": hs.per_example(),
    "norms": hs.norms(),
}


@pytest.mark.parametrize(("name", "reduction"), covering(list(LOSSES), ["mean", "sum"]))
def test_contributions_to_ratios(name, reduction):
    how = {"statistics": STATISTICS, "on_mixing": "contribution", "loss_reduction": reduction}
    found = hs.grad(LOSSES[name], batch_argnums=(1, 2, 3), **how)(P, X, Y, R)[1]
    copies = jax.tree.map(lambda a: jnp.broadcast_to(a, (B, *a.shape)), P)
    each = jax.grad(LOSSES[name])(copies, X, Y, R)
    assert_of(
        found, jax.tree.map(lambda g: np.float64(g) * (B if reduction == "mean" else 1), each)
    )


@pytest.mark.parametrize("divisor", [lambda y, r: jnp.sum(y), lambda y, r: jnp.sum(r, 0)])
def test_a_contraction_divided_by_a_sum_of_data(divisor):
    """Both are sums over the examples, and single products by example; only one of them is of the
    gradient.
    """

    def divided(w, x, y, r):
        return jnp.einsum("b,bi->i", x, r) / divisor(y, r)

    f = hs.rewrite(divided, batch_argnums=(1, 2, 3), statistics=STATISTICS)
    found = f(P["w"], X, Y, R)[1]
    assert_of(found, B * np.float64(X)[:, None] * R / divisor(Y, R))
    assert f.explain(P["w"], X, Y, R).outputs[0].strategies["square"] == "square"


def assert_of(found, each):
    square, sign = (jax.tree.map(lambda g, f=f: f(g).mean(0), each) for f in (np.square, np.sign))
    norms = np.sqrt(sum((g.reshape(B, -1) ** 2).sum(1) for g in jax.tree.leaves(each)))
    expected = {"square": square, "sign": sign, "each": each, "norms": norms}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), found, expected
    )
