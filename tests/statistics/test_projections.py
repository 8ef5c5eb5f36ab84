"""Projections: by every strategy those of the definition, with signs that nothing else decides."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.measures import projections
from hlo_surgery.passes.measures.projections import random_signs
from hlo_surgery.requests.options import ROOFLINES
from tools.exactness.projections_by_definition import (
    dense_projections_of,
    projections_of,
    wide_projections_of,
)

K, SEED, B, T, D, LAYERS, ROWS = 4, 7, 6, 8, 24, 3, 40
RNG = np.random.default_rng(0)
SIGNS = [
    "---++++-+--+++---+-+-++++++---+-+-++---+",
    "--+---+--+++-+-++++-+-+-----+---++-++--+",
]


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape) / 4, jnp.float32)


P = {
    "bias": draw(LAYERS, D),
    "heads": draw(D, 4, 6),
    "layers": draw(LAYERS, D, D),
    "outer": draw(4, 6, D),
    "scale": jnp.ones(()),
    "table": draw(ROWS, D),
    "thin": draw(D, 1),
}
IDS = jnp.asarray(RNG.integers(0, ROWS, (B, T)))


def loss(p, ids):
    """A scan over layers, heads, a scale, and a table that is the head too."""
    h, _ = jax.lax.scan(
        lambda h, layer: (jnp.tanh(h @ layer[0] + layer[1]) * p["scale"], None),
        p["table"][ids],
        (p["layers"], p["bias"]),
    )
    apart = jnp.tanh(jnp.einsum("btd,dhe->bthe", h, p["heads"]))
    h = h + jnp.einsum("bthe,hed->btd", apart, p["outer"]) + (h @ p["thin"])
    scores = h @ p["table"].T
    return jnp.mean(jax.nn.logsumexp(scores, -1) - scores[..., 0])


def own_gradients():
    each = jax.jit(jax.grad(loss))
    rows = [each(P, IDS[b : b + 1]) for b in range(B)]
    return jax.tree.map(lambda *g: np.stack([np.asarray(x, np.float64) for x in g]), *rows)


OWN = own_gradients()


def by_output(projection, seed=SEED):
    names = sorted(P)
    return {name: projection(OWN[name], K, seed, i) for i, name in enumerate(names)}


def held(found, expected):
    for name, value in expected.items():
        # Of sums with signs the terms are as large as the gradient's norm.
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5 * scale, err_msg=name)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_projections_are_those_of_the_definition(strategy):
    f = hs.grad(loss, statistics=hs.projected(K, SEED), strategy=strategy)
    held(f(P, IDS)[1], by_output(projections_of))


def test_errors_name_the_statistic():
    f = hs.grad(loss, statistics=hs.projected(K, kind="dense"), strategy="project")
    with pytest.raises(ValueError, match="does not apply to projected of"):
        f(P, IDS)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_numbers_stacked_by_a_scan_are_projected_as_a_vector(strategy):
    def scanned(p, x):
        return jnp.mean(jax.lax.scan(lambda h, s: (jnp.tanh(h * s), None), x, p)[0] ** 2)

    p, x = jnp.array([0.5, 1.0, 2.0]), draw(B, D)
    f = hs.grad(scanned, batch_argnums=1, statistics=hs.projected(K), strategy=strategy)
    own = jax.vmap(lambda x: jax.grad(scanned)(p, x[None]))(x)
    held({"s": f(p, x)[1]}, {"s": projections_of(np.asarray(own, np.float64), K)})


def test_factors_are_projected_where_gradients_are_outer_products():
    plan = hs.explain(hs.grad(loss, statistics=hs.projected(K, SEED)), P, IDS)
    taken = {out.name: out.strategies[f"projected({K}, seed={SEED})"] for out in plan.outputs}
    factored = [name for name, strategy in taken.items() if strategy == "project"]
    assert factored == [f"['{name}']" for name in ("heads", "layers", "outer", "table")]


def test_factors_with_the_same_signs_are_contracted_apart_where_merging_copies(monkeypatch):
    """Behind a barrier each, of which those of the shared input are one; the numbers stay."""

    def squares(p, x):
        return jnp.mean(jnp.sum(jnp.tanh(x @ p["q"]) ** 2 + jnp.tanh(x @ p["k"]) ** 2, (1, 2)))

    def made(copies):
        monkeypatch.setitem(ROOFLINES, "cpu", replace(ROOFLINES["cpu"], copies_merged=copies))
        f = hs.grad(squares, statistics=hs.projected(K), strategy="project")
        return jax.jit(f).lower(p, x).as_text().count("optimization_barrier"), f(p, x)[1]

    p, x = {"k": draw(D, D), "q": draw(D, D)}, draw(B, T, D)
    (none, wanted), (barriers, found) = made(False), made(True)
    assert (none, barriers) == (0, 3)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_of_all_parameters_they_add_up():
    asked = {
        "one": hs.projected(K, SEED, "global"),
        "two": hs.projected(K, SEED, "global", "dense"),
    }
    found = hs.grad(loss, statistics=asked)(P, IDS)[1]
    wide, dense = (by_output(f) for f in (wide_projections_of, dense_projections_of))
    held(found, {"one": sum(wide.values()), "two": sum(dense.values())})


def test_dense_projections_in_blocks():
    def wide(w, x):
        return jnp.mean(jnp.sin(x @ w) @ jnp.ones(600))

    w, x = draw(30, 600), draw(3, 30)
    f = hs.grad(wide, statistics=hs.projected(K, kind="dense"))
    own = jax.vmap(lambda x: jax.grad(wide)(w, x[None]))(x)
    held({"w": f(w, x)[1]}, {"w": dense_projections_of(np.asarray(own, np.float64), K)})


def test_inner_products_are_kept_on_average():
    """Over seeds the mean of products of projections is that of the gradients, in its error."""
    g = RNG.normal(size=(2, 5, 6, 7))
    g[1] += g[0]
    expected = np.sum(g[0] * g[1])
    for projection in (projections_of, wide_projections_of, dense_projections_of):
        pairs = [projection(g, 32, seed) for seed in range(50)]
        products = [np.sum(one * other) for one, other in pairs]
        error = np.std(products) / np.sqrt(len(products))
        assert error < 0.1 * expected
        assert abs(np.mean(products) - expected) < 4 * error


def test_signs_are_the_same_for_ever():
    """What has been written to disk with one version must fit what another computes."""
    found = random_signs(3, (1, 2), 2, 40)
    as_text = ["".join("+" if s > 0 else "-" for s in row) for row in np.asarray(found)]
    assert as_text == SIGNS


@pytest.mark.parametrize("seed", [3, (1 << 40) + 3, (1 << 64) - 1])
@pytest.mark.parametrize(("count", "k"), [(7, 3), (300, 40), (1, 32), (0, 4)])
def test_signs_that_are_written_are_those_that_are_drawn(count, k, seed, monkeypatch):
    """Few are constants of the program, and many are drawn as it runs."""
    written = random_signs(seed, (2, 5), count, k)
    monkeypatch.setattr(projections, "WRITTEN", -1)
    np.testing.assert_array_equal(written, random_signs(seed, (2, 5), count, k))


def test_a_small_model_draws_nothing():
    """A loop of the generator's rounds takes a TPU longer than the gradient."""
    w, x = jnp.ones((40, 30)), jnp.ones((7, 40))
    f = hs.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w)), statistics=hs.projected(16, 3))
    assert "while" not in f.module(w, x).text()


def test_seeds_differ_in_all_of_their_bits():
    of = [np.asarray(random_signs(seed, (1, 2), 2, 40)) for seed in (3, (1 << 40) + 3)]
    assert (of[0] != of[1]).any()


@pytest.mark.parametrize(
    "settings",
    [
        {"jax_enable_x64": True},
        {"jax_threefry_partitionable": False},
        {"jax_random_seed_offset": 5},
    ],
)
@pytest.mark.parametrize("seed", [3, (1 << 40) + 3, (1 << 64) - 1])
def test_no_setting_changes_a_sign(settings, seed):
    expected = random_signs(seed, (1, 2), 2, 40)
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        np.testing.assert_array_equal(random_signs(seed, (1, 2), 2, 40), expected)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "an integer k from 1"),
        ({"k": 2.5}, "an integer k from 1"),
        ({"k": True}, "an integer k from 1"),
        ({"k": 10**9}, "an integer k from 1"),
        ({"k": 2, "seed": -1}, "an integer seed from 0"),
        ({"k": 2, "seed": 1 << 64}, "an integer seed from 0"),
        ({"k": 2, "kind": "sparse"}, "a kind of kronecker or dense"),
        ({"k": 2, "per": "layer"}, "per is 'layer'"),
    ],
)
def test_bad_arguments_say_what_to_write(arguments, message):
    with pytest.raises(ValueError, match=message):
        hs.projected(**arguments)


EMPTY = [(0,), (0, 4), (4, 0), (2, 0, 3), (0, 4, 5)]


@pytest.mark.parametrize("kind", ["kronecker", "dense"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_a_parameter_without_elements_has_zeros(shape, kind):
    def loss(params, x):
        return jnp.mean((x @ params["w"] + jnp.sum(params["empty"]) * x[:, 0]) ** 2)

    f = hs.grad(loss, batch_argnums=1, statistics=hs.projected(3, kind=kind))
    _, found = f({"empty": jnp.ones(shape), "w": jnp.ones(D)}, draw(B, D))
    assert found["empty"].shape[:2] == (B, 3)
    assert not found["empty"].any()
    assert found["w"].any()


@pytest.mark.parametrize("asked", ["default", "highest"])
def test_factors_are_rounded_as_the_gradient_is(asked):
    def loss(w, x):
        return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, (1, 2)))

    f = hs.grad(loss, batch_argnums=1, statistics=hs.projected(2), strategy="project")
    with jax.default_matmul_precision(asked):
        text = jax.jit(f).lower(jnp.ones((8, 5)), jnp.ones((4, 3, 8))).as_text()
    dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(dots) >= 4  # the layer, its gradient, both projections, their product
    assert {"HIGHEST" in line for line in dots} == {asked == "highest"}
