"""Sums over the same elements by one reduction, as for a GPU, run here."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.measures.joint_sums import summed_together
from hlo_surgery.passes.measures.scaled_norms import norms_of_rows
from hlo_surgery.planning.rooflines import ROOFLINES

B = 6
STATISTICS = {
    "squares": hs.second_moment(),
    "signs": hs.mean_sign(),
    "variance": hs.variance(),
    "norms": hs.norms(),
    "cubes": hs.mean_of(lambda g: g**3),
}


def loss(w, x, real):
    each = jnp.sum(jnp.tanh(x @ w) ** 2, (1, 2))
    return jnp.sum(each * real) / jnp.sum(real)


@pytest.fixture(scope="module")
def operands():
    draw = np.random.default_rng(0)
    w, x = draw.normal(size=(5, 4)), draw.normal(size=(B, 3, 5))
    return w.astype(np.float32), x.astype(np.float32), np.float32([1, 1, 0, 1, 1, 0])


def defined(w, x, real):
    """Every statistic of the real examples, by its definition, in double precision."""
    with jax.enable_x64(True):
        ones = np.ones(1)
        rows = np.stack([jax.grad(loss)(np.float64(w), x[b : b + 1], ones) for b in range(B)])
    g = rows[real == 1]
    norms = np.where(real == 1, np.linalg.norm(rows.reshape(B, -1), axis=1), 0)
    return {
        "squares": (g**2).mean(0),
        "signs": np.sign(g).mean(0),
        "variance": g.var(0, ddof=1),
        "norms": norms,
        "cubes": (g**3).mean(0),
    }


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_statistics_are_the_same(strategy, padded, shards, operands, monkeypatch):
    monkeypatch.setitem(ROOFLINES, "cpu", replace(ROOFLINES["cpu"], joint_sums=True))
    w, x, real = operands
    real = real if padded else np.ones_like(real)
    # So few bytes that a loop has steps, and a rest.
    few = {"memory_budget": 4 * w.size * 4} if strategy == "loop" else {}
    mask = {"is_real": 2} if padded else {}
    f = hs.grad(
        loss,
        batch_argnums=(1, 2),
        statistics=STATISTICS,
        strategy=strategy,
        shards=shards,
        **few,
        **mask,
    )
    gradient, found = f(w, x, real)
    np.testing.assert_allclose(gradient, jax.grad(loss)(w, x, real), rtol=1e-5, atol=1e-7)
    for name, expected in defined(w, x, real).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)


def test_arrays_of_several_shapes_and_types():
    tree = [jnp.ones((3, 2)), jnp.arange(6).reshape(3, 2), None, jnp.ones((3, 4), jnp.bfloat16)]
    ones, numbers, none, narrow = summed_together(tree, 0)
    assert none is None
    assert (ones.tolist(), numbers.tolist()) == ([3, 3], [6, 9])
    assert (numbers.dtype, narrow.dtype) == (jnp.int32, jnp.bfloat16)


@pytest.mark.parametrize("row", [[np.nan, 1], [np.inf, 1], [np.nan, np.inf], [np.nan, 0], [0, 0]])
def test_what_is_no_number_stays_so(row):
    """Beside what is large, small, or neither."""
    for beside in ([], [1e38], [2e-38], [3.0]):
        rows = jnp.float32([[*row, *beside]])
        found = norms_of_rows(rows, one_reading=True)
        np.testing.assert_array_equal(found, np.linalg.norm(np.float64(rows), axis=1))
