"""Graphs of any size in one batch: every statistic is that of a Python loop over the graphs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
from hlo_surgery.estimators import NoiseScale
from hlo_surgery.optimizers import micro_adam
from tests.following.graph_batches import (
    E,
    N,
    batch,
    graph,
    loss,
    losses,
    one_at_a_time,
    params,
    segments,
)
from tools.exactness.projections_by_definition import projections_of


def flat(each):
    return np.concatenate([np.asarray(x).reshape(E, -1) for x in jax.tree.leaves(each)], 1)


def by_leaf(f):
    return lambda each: jax.tree.map(f, each)


def norms(each):
    return np.linalg.norm(flat(each), axis=1)


def weighted(weights):
    return lambda each: jax.tree.map(lambda g: np.tensordot(weights(norms(each)), g, 1) / E, each)


def noise_scale(each):
    rows = flat(each)
    noise = rows.var(0, ddof=1).sum()
    return NoiseScale(noise, (rows.mean(0) ** 2).sum() - noise / E)


def projected(each):
    names = sorted(each)
    return {name: projections_of(each[name], 3, 0, i) for i, name in enumerate(names)}


EDGES = (-10.0, -0.1, 0.0, 0.1, 10.0)


def shrunk(n):
    return 1 / (1 + n)


def squares_of_shrunk(each):
    weights = shrunk(norms(each)) ** 2 / E
    return jax.tree.map(lambda g: np.tensordot(weights, g**2, 1), each)


STATISTICS = {
    "second": (hs.second_moment(), by_leaf(lambda g: (g**2).mean(0))),
    "sign": (hs.mean_sign(), by_leaf(lambda g: np.sign(g).mean(0))),
    "abs": (hs.mean_abs(), by_leaf(lambda g: abs(g).mean(0))),
    "cube": (hs.mean_power(3), by_leaf(lambda g: (g**3).mean(0))),
    "clip": (hs.mean_clipped(0.1), by_leaf(lambda g: np.clip(g, -0.1, 0.1).mean(0))),
    "cos": (hs.mean_of(jnp.cos), by_leaf(lambda g: np.cos(g).mean(0))),
    "polynomial": (
        hs.polynomial([1.0, 2.0, 3.0]),
        by_leaf(lambda g: (1 + 2 * g + 3 * g**2).mean(0)),
    ),
    "variance": (hs.variance(), by_leaf(lambda g: g.var(0, ddof=1))),
    "snr": (hs.snr(), by_leaf(lambda g: abs(g.mean(0)) / g.std(0, ddof=1))),
    "histogram": (hs.histogram(EDGES), by_leaf(lambda g: np.histogram(g, EDGES)[0])),
    "each": (hs.per_example(), lambda each: each),
    "norms": (hs.norms(), norms),
    "clipped": (hs.clipped_mean(1.0), weighted(lambda n: np.minimum(1, 1 / n))),
    "weighted": (hs.weighted_mean(shrunk), weighted(shrunk)),
    "squares weighted": (hs.weighted_second_moment(shrunk), squares_of_shrunk),
    "positive": (
        hs.sum_of(lambda tree: [(g > 0).sum() for g in jax.tree.leaves(tree)], "global"),
        lambda each: [(g > 0).sum() for g in jax.tree.leaves(each)],
    ),
    "largest": (
        hs.sum_of(lambda g: jnp.nanmax(abs(g))),
        by_leaf(lambda g: abs(g).reshape(len(g), -1).max(1).sum()),
    ),
    "gram": (hs.gram(), lambda each: flat(each) @ flat(each).T),
    "along": (hs.inner_products(), lambda each: flat(each) @ flat(each).mean(0)),
    "noise": (hs.noise_scale(), noise_scale),
    "projected": (hs.projected(3), projected),
}


@cache
def with_every_statistic(strategy):
    """The function that all batches are given to, compiled once."""
    asked = {name: s for name, (s, _) in STATISTICS.items()}
    asked |= {"crossed": hs.crossed(), "losses": hs.per_example_losses()}
    return hs.value_and_grad(loss, segments=segments, statistics=asked, strategy=strategy)


def every(strategy, b):
    with jax.enable_x64(True):
        (value, gradient), found = with_every_statistic(strategy)(params(), b)
    return jax.device_get(((value, gradient), found))


@pytest.fixture(scope="module")
def each():
    with jax.enable_x64(True):
        return one_at_a_time(losses, params(), [graph(batch(), g) for g in range(E)])


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_every_statistic_is_that_of_a_loop_over_graphs(strategy, each):
    (value, gradient), found = every(strategy, batch())
    assert not found["crossed"].any()
    for name, (_, wanted) in STATISTICS.items():
        jax.tree.map(
            lambda a, b, name=name: np.testing.assert_allclose(a, b, 1e-8, 1e-10, err_msg=name),
            found[name],
            wanted(each),
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.mean(0), 1e-8, 1e-12), gradient, each)
    with jax.enable_x64(True):
        own = [float(losses(params(), graph(batch(), g))[0]) for g in range(E)]
    np.testing.assert_allclose(found["losses"], own, 1e-8, 1e-12)
    np.testing.assert_allclose(value, np.mean(own), 1e-8, 1e-12)


CROSSED = np.array([True, False, False, True])


def crossing():
    """An edge of graph 0 that comes from graph 3."""
    b = batch()
    return b | {"senders": np.r_[8, b["senders"][1:]].astype(np.int32)}


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_graphs_that_an_edge_crosses_are_not_a_number(strategy, each):
    _, found = every(strategy, crossing())
    np.testing.assert_array_equal(found["crossed"], CROSSED)
    for name in ("norms", "losses"):
        np.testing.assert_array_equal(np.isnan(found[name]), CROSSED)
    np.testing.assert_array_equal(np.isnan(found["gram"]), CROSSED | CROSSED[:, None])
    for key, rows in found["each"].items():
        np.testing.assert_allclose(rows[~CROSSED], each[key][~CROSSED], 1e-8, 1e-12)
        assert np.isnan(rows[CROSSED]).all()
    rows = {"each", "projected", "norms", "losses", "gram", "crossed", "along"}
    counts = {"histogram", "positive"}
    for name in found.keys() - rows - counts:
        assert all(np.isnan(x).all() for x in jax.tree.leaves(found[name])), name
    for name in counts:
        assert all((x == -1).all() for x in jax.tree.leaves(found[name])), name
    assert np.isnan(found["along"])[CROSSED].all()


def test_a_mean_that_is_safe_from_nan_leaves_crossed_graphs_out(each):
    with jax.enable_x64(True):
        asked = hs.clipped_mean(1.0, nan_safe=True)
        _, found = hs.grad(loss, segments=segments, statistics=asked)(params(), crossing())
    kept = jax.tree.map(lambda g: g[~CROSSED], each)
    n = norms(each)[~CROSSED]
    wanted = jax.tree.map(lambda g: np.tensordot(np.minimum(1, 1 / n), g, 1) / E, kept)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-8, 1e-12), found, wanted)


def test_a_crossing_that_no_gradient_rests_on_is_none():
    def with_aux(p, b):
        return loss(p, b), jnp.sum(b["nodes"][b["senders"]] * b["nodes"][b["receivers"]])

    with jax.enable_x64(True):
        f = hs.grad(with_aux, has_aux=True, segments=segments, statistics=hs.crossed())
        _, found = f(params(), batch() | {"senders": batch()["senders"]})
    assert not found.any()


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_a_padding_graph_is_no_example(strategy, each):
    """As in jraph the last graph has what fills the arrays; here it is graph 3."""

    def mean_of_real(p, b):
        real = jnp.arange(E) < E - 1
        return jnp.sum(jnp.where(real, losses(p, b), 0)) / real.sum()

    asked = {"each": hs.per_example(), "second": hs.second_moment()}
    with jax.enable_x64(True):
        real = np.arange(E) < E - 1
        how = {"segments": segments, "statistics": asked, "is_real": real, "strategy": strategy}
        _, found = hs.grad(mean_of_real, **how)(params(), batch())
    for key, rows in found["each"].items():
        np.testing.assert_allclose(rows[:-1], each[key][:-1], 1e-8, 1e-12)
        np.testing.assert_allclose(found["second"][key], (each[key][:-1] ** 2).mean(0), 1e-8, 1e-12)


def test_padding_that_the_loss_counts_is_no_silent_term():
    """Rows of nobody that reach a gradient are no example's, nor all examples'."""

    def counting(p, b):
        return loss(p, b) + jnp.sum(jnp.tanh(b["nodes"] @ p["node"][:3]) ** 2) / N

    with jax.enable_x64(True):
        f = hs.grad(counting, segments=segments, statistics=hs.norms(per="parameter"))
        _, found = f(params(), batch())
    assert np.isnan(found["node"]).all()
    assert not np.isnan(found["edge"]).any()


@pytest.mark.parametrize(
    "beside",
    [
        lambda x: jnp.pad(x[:1], ((0, 3), (0, 0)), constant_values=1.0),
        lambda x: jnp.ones((4, x.shape[1])).at[1].set(x[0]),
        lambda x: jax.lax.dynamic_update_slice(jnp.ones((4, x.shape[1])), x[:1], (1, 0)),
    ],
    ids=["pad", "scatter", "update"],
)
def test_what_is_put_beside_one_row_is_not_its_examples(beside):
    def counting(p, b):
        return loss(p, b) + jnp.sum((beside(b["nodes"]) @ p["node"][:3]) ** 2)

    with jax.enable_x64(True):
        f = hs.grad(counting, segments=segments, statistics=hs.norms(per="parameter"))
        _, found = f(params(), batch())
    assert np.isnan(found["node"]).all()
    assert not np.isnan(found["edge"]).any()


def test_one_graph_alone_has_the_gradient():
    with jax.enable_x64(True):
        f = hs.grad(loss, segments=segments, statistics=hs.per_example())
        gradient, found = f(params(), graph(batch(), 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, 1e-12), found, gradient)


def test_a_sum_of_losses_with_decay(each):
    """Of a sum loss each example has a B-th of what is for all."""

    def total(p, b):
        return jnp.sum(losses(p, b)) + 0.1 * sum(jnp.sum(x**2) for x in jax.tree.leaves(p))

    with jax.enable_x64(True):
        how = {"segments": segments, "statistics": hs.per_example(), "loss_reduction": "sum"}
        _, found = hs.grad(total, **how)(params(), batch())
        wanted = jax.tree.map(lambda g, x: g + 0.2 * x / E, each, params())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-8, 1e-12), found, wanted)


def test_a_train_step():
    p, b = jax.tree.map(jnp.float32, params()), batch()
    optimizer = optax.chain(micro_adam(0.01))
    asked = {"norms": hs.norms(), "crossed": hs.crossed()}
    step = hs.train_step(loss, optimizer, segments=segments, statistics=asked)
    state, first = optimizer.init(p), None
    for _ in range(10):
        p, state, metrics = step(p, state, b)
        first = first or float(metrics["loss"])
    assert float(metrics["loss"]) < first
    assert metrics["norms"].shape == (E,)
