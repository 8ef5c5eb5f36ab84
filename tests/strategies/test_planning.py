"""Planning: predictions that fit the device, budgets kept, options that change how, never what."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests import options as rooflines
from hlo_surgery.requests.options import roofline
from tests.products import covering
from tools.exactness.projections_by_definition import projections_of

B, L, D, F = 6, 5, 4, 3
KEY = jax.random.key(0)
W, X = jax.random.normal(KEY, (D, F)), jax.random.normal(jax.random.fold_in(KEY, 1), (B, L, D))
MEASURED = {
    "squares": hs.second_moment(),
    "cosines": hs.mean_of(jnp.cos),
    "norms": hs.norms(),
    "own": hs.per_example(),
    "projected": hs.projected(2, seed=3),
    "sum_of": hs.sum_of(lambda g: g.T @ g),
}


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@cache
def by_definition():
    """The examples' gradients, and their statistics."""
    own = jax.vmap(lambda x: jax.grad(loss)(W, x[None]))(X)
    return own, {
        "squares": jnp.mean(own**2, 0),
        "cosines": jnp.mean(jnp.cos(own), 0),
        "norms": jnp.linalg.norm(own.reshape(B, -1), axis=1),
        "own": own,
        "projected": projections_of(own, 2, 3),
        "sum_of": jnp.einsum("bij,bik->jk", own, own),
    }


def assert_right(found):
    gradient, statistics = found
    own, expected = by_definition()
    np.testing.assert_allclose(gradient, jnp.mean(own, 0), rtol=1e-5, atol=1e-7)
    for name, value in expected.items():
        np.testing.assert_allclose(statistics[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


OPTIONS = [
    {},
    {"shards": 2},
    {"shards": 4},
    {"strategy": "lift"},
    {"strategy": "lift", "reuse_gradient": False},
    {"strategy": "loop", "reuse_gradient": True},
    {"strategy": "loop", "shards": 3},
    {"strategy": "loop", "shards": 6, "reuse_gradient": False},
    {"memory_budget": 1},
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("options", "widest_chunk"), covering(OPTIONS, [1, 2, 4, 100]), ids=str)
def test_no_option_changes_the_numbers(options, widest_chunk, monkeypatch):
    monkeypatch.setitem(
        rooflines.ROOFLINES,
        "cpu",
        dataclasses.replace(roofline("cpu"), widest_chunk=widest_chunk, batched=1),
    )
    assert_right(hs.grad(loss, statistics=MEASURED, **options)(W, X))


# Cycles of norms and gradient of a dense layer over its plain gradient's, for v5e: by bundles of
# libtpu 0.0.42.1 (`tools.bench.bundles`), jax 0.10.2, where squares fit and nothing cancels.
DENSE_NORMS = {
    (16, 32, 512, 2048, "float32"): {"ghost": 1.75, "lift": 2.00, "loop": 4.80},
    (16, 128, 512, 2048, "float32"): {"ghost": 2.10, "lift": 1.11, "loop": 2.04},
    (16, 256, 512, 2048, "float32"): {"ghost": 3.09, "lift": 1.07, "loop": 1.63},
    (64, 32, 128, 128, "float32"): {"ghost": 6.39, "lift": 1.55, "loop": 5.11},
    (64, 128, 128, 128, "float32"): {"ghost": 4.98, "lift": 1.15, "loop": 2.21},
    (64, 1024, 128, 128, "float32"): {"ghost": 27.98, "lift": 1.13, "loop": 1.34},
    (8, 32, 1024, 1024, "bfloat16"): {"ghost": 1.53, "lift": 2.22, "loop": 5.27},
    (8, 128, 1024, 1024, "bfloat16"): {"ghost": 1.39, "lift": 1.15, "loop": 2.12},
    (8, 512, 1024, 1024, "bfloat16"): {"ghost": 3.12, "lift": 0.93, "loop": 1.17},
}


@pytest.mark.first(2)
@pytest.mark.parametrize("shape", DENSE_NORMS, ids=str)
def test_norms_are_had_as_xla_for_tpu_has_them_fastest(shape):
    def error(w, x, y):
        return jnp.mean(jnp.sum((x @ w - y) ** 2, (1, 2)))

    size, length, width, wider, dtype = shape
    shapes = [(width, wider), (size, length, width), (size, length, wider)]
    structs = [jax.ShapeDtypeStruct(each, dtype) for each in shapes]
    f = hs.grad(error, batch_argnums=(1, 2), statistics=hs.norms(), target="tpu:v5e")
    (taken,) = f.explain(*structs).outputs[0].strategies.values()
    cycles = DENSE_NORMS[shape]
    assert cycles[taken] <= 1.1 * min(cycles.values())


def test_a_budget_bounds_the_temporaries_of_xla(monkeypatch):
    monkeypatch.setitem(
        rooflines.ROOFLINES,
        "cpu",
        dataclasses.replace(roofline("cpu"), widest_chunk=100, batched=1, step_seconds=1),
    )
    w, x = (
        jax.ShapeDtypeStruct((256, 256), jnp.float32),
        jax.ShapeDtypeStruct((64, 4, 256), jnp.float32),
    )
    own = 256 * 256 * 4

    def temporaries(budget):
        f = hs.grad(loss, statistics=hs.second_moment(), memory_budget=budget)
        return jax.jit(f).lower(w, x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(100 * own) >= 64 * own
    # Beside a chunk there are the two accumulators, and the operands of the contraction.
    assert temporaries(8 * own) < (8 + 8) * own


def through_layers(p, x):
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p["layers"])
    return jnp.mean((h.mean(1) @ p["out"]) ** 2)


def test_what_is_forced_names_the_gradient_that_it_does_not_apply_to():
    """Gradients that a scan stacks are looked at in the loop, and have the same name."""
    p = {"layers": jnp.ones((4, 3, 3)), "out": jnp.ones((3, 2))}
    f = hs.grad(through_layers, statistics=hs.second_moment(), strategy="square")
    with pytest.raises(ValueError, match=r"of \['layers'\], and what is forced must"):
        f(p, jnp.ones((5, 7, 3)))


def test_sums_with_weights_are_had_of_lifted_gradients_where_these_are_smaller():
    """Clipping contracts no second time: it takes few FLOPs more than norms do."""
    x = jnp.sin(jnp.arange(8.0 * 512 * D)).reshape(8, 512, D).at[3].set(jnp.nan)

    def flops(statistic):
        f = hs.grad(loss, statistics=statistic, strategy="lift")
        compiled = jax.jit(f).lower(W, x).compile()
        return compiled.cost_analysis()["flops"], compiled(W, x)[1]

    contraction = 2 * 8 * 512 * D * F
    (plain, norms), (clipped, mean) = flops(hs.norms()), flops(hs.clipped_mean(0.01))
    assert clipped - plain < contraction / 4
    own = jax.vmap(lambda one: jax.grad(loss)(W, one[None]))(x)
    factors = np.where(np.isfinite(norms), 0.01 / np.maximum(norms, 0.01), 0)
    expected = np.tensordot(factors, np.nan_to_num(own), 1) / 8
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-8)
