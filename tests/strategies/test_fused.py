"""Fused: measures by a kernel, interpreted here, against single gradients in float64.

This folder alone tests that no strategy and no option changes a number.
"""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hlo_surgery as hs
from tests.statistics.statistic_models import in_float64
from tools.bench.gpu.dense_sites import dense_site

B, EPS = 5, float(jnp.finfo(jnp.float32).eps)
rng = np.random.default_rng(0)


def drawn(*shape):
    return rng.normal(size=shape).astype(np.float32)


STATISTICS = {
    "squares": hs.second_moment(),
    "signs": hs.mean_sign(),
    "sizes": hs.mean_abs(),
}
TAKEN = {
    "squares": lambda g: (g**2).mean(0),
    "signs": lambda g: np.sign(g).mean(0),
    "sizes": lambda g: np.abs(g).mean(0),
}


def own_gradients(loss, w, *batch):
    """Each example's gradient, alone in a batch of one, in float64."""
    with jax.enable_x64(True):
        w, *batch = in_float64((w, *batch))
        alone = jax.vmap(lambda *example: jax.grad(loss)(w, *(x[None] for x in example)))
        return np.asarray(jax.jit(alone)(*batch))


def summed(h):
    """A loss of each example, of any shape, and their mean."""
    return jnp.mean(jnp.sum(jnp.tanh(h.reshape(len(h), -1)), 1))


DENSE = {
    "no position": (lambda w, x: summed(x @ w), (4, 3), (B, 4)),
    "one": (lambda w, x: summed(x @ w), (4, 3), (B, 6, 4)),
    "two": (lambda w, x: summed(x @ w), (4, 3), (B, 2, 3, 4)),
    "transposed": (lambda w, x: summed(jnp.einsum("btd,fd->btf", x, w)), (3, 4), (B, 6, 4)),
    "heads out": (lambda w, x: summed(jnp.einsum("btd,dhk->bthk", x, w)), (4, 2, 3), (B, 6, 4)),
    "apart": (lambda w, x: summed(jnp.einsum("bhtd,hdk->bhtk", x, w)), (2, 4, 3), (B, 2, 6, 4)),
    "scaled": (lambda w, x: summed(x @ (-3 * w.T)), (3, 4), (B, 6, 4)),
}


def assert_right(found, own, terms):
    """An element of a gradient is a sum of so many terms of size about 1."""
    gradient, statistics = found
    close = {"rtol": 1e-5, "atol": 8 * terms * EPS}
    np.testing.assert_allclose(gradient, own.mean(0), **close)
    for name, taken in TAKEN.items():
        np.testing.assert_allclose(statistics[name], taken(own), **close, err_msg=name)


@pytest.mark.parametrize("name", DENSE)
def test_dense_sites(name):
    loss, *shapes = DENSE[name]
    w, x = (drawn(*shape) for shape in shapes)
    f = hs.grad(loss, statistics=STATISTICS, strategy="fused")
    (output,) = f.explain(w, x).outputs
    assert set(output.strategies.values()) == {"fused"}
    assert_right(f(w, x), own_gradients(loss, w, x), terms=12)


@pytest.mark.parametrize(
    ("statistic", "taken"),
    [
        (hs.mean_of(lambda g: g**2), lambda g: g**2),
        (hs.mean_of(lambda g: g**2, factorable=True), lambda g: g**2),
        (hs.mean_of_clipped_entries(0.1), lambda g: np.clip(g, -0.1, 0.1)),
    ],
)
def test_of_a_function_that_is_given_no_kernel_is_made(statistic, taken):
    """Nothing shows what it makes of a tile."""
    loss, *shapes = DENSE["one"]
    w, x = (drawn(*shape) for shape in shapes)
    f = hs.grad(loss, statistics=statistic, strategy="fused")
    (output,) = f.explain(w, x).outputs
    assert "fused" not in output.strategies.values()
    expected = taken(own_gradients(loss, w, x)).mean(0)
    np.testing.assert_allclose(f(w, x)[1], expected, rtol=1e-5, atol=12 * 8 * EPS)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_narrow_operands(kind):
    """Products of them are exact in float32, which is what is squared and summed."""
    x, c = drawn(B, 6, 4).astype(kind), drawn(B, 6, 3).astype(kind)
    w = np.zeros((4, 3), kind)
    f = hs.grad(
        lambda w, x, c: jnp.sum((x @ w) * c),
        batch_argnums=(1, 2),
        statistics=STATISTICS,
        loss_reduction="sum",
        strategy="fused",
    )
    (output,) = f.explain(w, x, c).outputs
    assert set(output.strategies.values()) == {"fused"}
    own = np.einsum("btd,btf->bdf", x.astype(np.float64), c.astype(np.float64))
    gradient, statistics = f(w, x, c)
    assert gradient.dtype == kind
    # Rounded once, of a sum of 6 B terms in float32, whose order is XLA's.
    once = float(ml_dtypes.finfo(kind).eps) / 2 * np.abs(own.sum(0))
    added = 6 * B * float(np.finfo(np.float32).eps) * np.abs(own).sum(0)
    assert np.all(np.abs(np.asarray(gradient, np.float64) - own.sum(0)) <= once + added)
    assert_right((own.mean(0), statistics), own, terms=12)


def test_microbatches():
    w, x = drawn(4, 3), drawn(6, 2, 4)

    def gradient(w, x):
        def step(total, part):
            return total + jax.grad(lambda w, x: summed(x @ w))(w, part), None

        return jax.lax.scan(step, jnp.zeros_like(w), x.reshape(3, 2, 2, 4))[0] / 3

    f = hs.rewrite(gradient, batch_argnums=1, statistics=STATISTICS, strategy="fused")
    found, statistics = f(w, x)
    own = own_gradients(lambda w, x: summed(x @ w), w, x)
    np.testing.assert_allclose(found, own.mean(0), rtol=1e-5, atol=1e-6)
    for name in STATISTICS:
        np.testing.assert_allclose(statistics[name], TAKEN[name](own), rtol=1e-5, atol=1e-6)


MICROSECONDS = {
    (16, 512, 512, 8192): {"fused": 107, "lift": 125, "loop": 282},
    (256, 16, 1024, 1024): {"fused": 60, "lift": 519, "loop": 1385},
    (64, 128, 1024, 1024): {"fused": 54, "lift": 198, "loop": 357},
    (8, 2048, 1024, 4096): {"fused": 114, "lift": 69, "loop": 70},
}
"""What each took on an H200 beside the plain gradient (`tools/RESULTS.md`)."""


@pytest.mark.parametrize("sizes", MICROSECONDS)
def test_a_plan_takes_what_was_the_fastest_on_a_gpu(sizes):
    problem, took = dense_site(*sizes), MICROSECONDS[sizes]
    f = hs.grad(
        problem.loss,
        batch_argnums=problem.batch_argnums,
        statistics=hs.second_moment(),
        target="gpu:h200",
    )
    (output,) = f.explain(*problem.structs).outputs
    assert output.strategies == {"second_moment": min(took, key=took.__getitem__)}
    assert 0.7 < output.predicted["fused"].seconds * 1e6 / took["fused"] < 1.4
