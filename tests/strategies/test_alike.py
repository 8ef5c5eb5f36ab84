"""Alike: gradients of one form share one trace, and of two forms never."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.strategies import alike, choice
from tests.products import covering

B, L, D = 4, 3, 5
KEYS = jax.random.split(jax.random.key(0), 8)
X = jax.random.normal(KEYS[0], (B, L, D))
W, V = (jax.random.normal(key, (D, D)) / 2 for key in KEYS[1:3])
KERNELS = tuple(jax.random.normal(key, (2, D, D)) / 2 for key in KEYS[3:5])
TABLES = tuple(jax.random.normal(key, (B * L, D)) for key in KEYS[5:7])
SCALE = 1.7
# None factors, so that each example's own gradient is made.
STATISTICS = {"cosines": hs.mean_of(jnp.cos), "signs": hs.mean_of(jnp.tanh), "norms": hs.norms()}


@pytest.fixture
def traced(monkeypatch):
    """How many gradients each trace is of, one for each time that one is traced."""
    found = []
    for name in ("LIFT", "LOOP"):
        strategy = getattr(alike, name)

        def noted(asked, known, emit=strategy.emit):
            found.append(len(asked))
            return emit(asked, known)

        noting = dataclasses.replace(strategy, emit=noted)
        monkeypatch.setattr(alike, name, noting)
        monkeypatch.setattr(choice, name, noting)
        known = tuple(noting if each is strategy else each for each in choice.STRATEGIES)
        monkeypatch.setattr(choice, "STRATEGIES", known)
    return found


def check(loss, params, *batch, statistics=STATISTICS, **planning):
    """Statistics against examples one at a time, and whatever is shared against nothing shared."""
    argnums = tuple(range(1, 1 + len(batch)))
    asked = {"batch_argnums": argnums, "statistics": statistics, **planning}
    gradient, found = jax.jit(hs.grad(loss, **asked))(params, *batch)

    def of_one(*example):
        return jax.grad(loss)(params, *(x[None] for x in example))

    own = jax.vmap(of_one)(*batch)
    assert_close(gradient, jax.tree.map(lambda g: jnp.mean(g, 0), own))
    assert_close(found["cosines"], jax.tree.map(lambda g: jnp.mean(jnp.cos(g), 0), own))
    assert_close(found["signs"], jax.tree.map(lambda g: jnp.mean(jnp.tanh(g), 0), own))
    squares = [jnp.sum(g.reshape(g.shape[0], -1) ** 2, 1) for g in jax.tree.leaves(own)]
    assert_close(found["norms"], jnp.sqrt(sum(squares)))


def assert_close(found, expected):
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def layers(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@pytest.mark.first(1)
@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_equal_layers_are_traced_once(strategy, traced):
    """The first layer alone differs, since nothing but x goes into it: in no way that tells."""
    weights = [jax.random.normal(key, (D, D)) / 2 for key in jax.random.split(KEYS[7], 6)]
    counts = []
    for depth in (2, 4, 6):
        check(layers, weights[:depth], X, strategy=strategy)
        counts.append(len(traced))
        traced.clear()
    assert counts == [1, 1, 1]


def test_a_group_of_gradients_is_traced_once(traced):
    """A layer's weight and what scales its result share a loop."""

    def loss(params, x):
        for w, scale in params:
            x = jnp.tanh(x @ w) * scale
        return jnp.mean(x**2)

    params = [(W, jnp.ones((L, D))), (V, jnp.full((L, D), 0.5))] * 2
    check(loss, params, X, strategy="loop")
    assert len(traced) < len(jax.tree.leaves(params))


def constant_in_the_tail(params, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ (2 * params[0])) @ (3 * params[1])) ** 2)


def constants_of_many_numbers(params, x):
    scales = np.linspace(1, 2, D, dtype=np.float32), np.linspace(2, 3, D, dtype=np.float32)
    return layers([w * s for w, s in zip(params, scales, strict=True)], x)


def turned_weight(params, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ params[0]) @ params[1].T) ** 2)


def other_contraction(params, x):
    """The same shapes, other dimensions."""
    hidden = jnp.tanh(jnp.einsum("bld,de->ble", x, params[0]))
    return jnp.mean(jnp.tanh(jnp.einsum("bld,ed->ble", hidden, params[1])) ** 2)


def precision_of_one(params, x):
    hidden = jnp.tanh(jnp.dot(x, params[0], precision="highest"))
    return jnp.mean(jnp.tanh(jnp.dot(hidden, params[1], precision="default")) ** 2)


def closed_over(params, x):
    return layers([SCALE * params[0], params[1]], x)


def tied(params, x):
    hidden = jnp.tanh(x @ params[0])
    return jnp.mean(jnp.tanh(jnp.tanh(hidden @ params[1]) @ params[1].T) ** 2)


def regularised(params, x):
    return layers(params, x) + jnp.sum(params[1] ** 2)


def used_in_part(params, x):
    return jnp.mean(jnp.tanh(x[..., :3] @ params[0][:3]) ** 2) + jnp.mean(
        jnp.tanh(x[..., 2:] @ params[1][2:]) ** 2
    )


def scanned(params, x):
    """A recurrence of two steps, and one of three."""
    for w, steps in zip(params, (2, 3), strict=True):
        x, _ = lax.scan(lambda h, _, w=w: (jnp.tanh(h @ w), None), x, length=steps)
    return jnp.mean(x**2)


def along_other_axes(params, x):
    """Examples are in the first and in the second dimension."""
    turned = jnp.swapaxes(jnp.tanh(x @ params[0]), 0, 1)
    return jnp.mean(jnp.tanh(turned @ params[1]) ** 2)


def divided_in_other_ways(params, x):
    """Rows of the examples lie side by side, and one in another."""
    rows = jnp.tanh(x.reshape(-1, D) @ params[0])
    moved = jnp.swapaxes(rows.reshape(-1, L, D), 0, 1).reshape(-1, D)
    return jnp.mean(jnp.tanh(moved @ params[1]) ** 2)


def padded_in_other_places(params, x):
    for kernel, padding in zip(params, [(1, 0), (0, 1)], strict=True):
        x = jnp.tanh(lax.conv_general_dilated(x, kernel, (1,), [padding], **NUMBERS))
    return jnp.mean(x**2)


def dilated(params, x):
    for kernel, dilation in zip(params, (2, 1), strict=True):
        padded = {"padding": [(dilation, 0)], "rhs_dilation": (dilation,)}
        x = jnp.tanh(lax.conv_general_dilated(x, kernel, (1,), **padded, **NUMBERS))
    return jnp.mean(x**2)


NUMBERS = {"dimension_numbers": ("NWC", "WIO", "NWC")}


def rows_read_once_and_more_often(params, indices):
    one = params[0].at[indices].get(unique_indices=True)
    other = params[1].at[indices].get()
    return jnp.mean(jnp.tanh(one) ** 2) + jnp.mean(jnp.tanh(other) ** 2)


def layers_of_dtypes(params, x):
    wide = jnp.tanh(x @ params[0]).astype(jnp.float64)
    return jnp.mean(jnp.tanh(wide @ params[1]) ** 2).astype(jnp.float32)


IDS = jnp.arange(B * L).reshape(B, L)
# Losses that differ in one thing, and how many traces that makes of two gradients.
TRACES = {
    constant_in_the_tail: ((W, V), X, 1),
    constants_of_many_numbers: ((W, V), X, 1),
    turned_weight: ((W, V), X, 2),
    other_contraction: ((W, V), X, 2),
    precision_of_one: ((W, V), X, 2),
    closed_over: ((W, V), X, 2),
    tied: ((W, V), X, 2),
    regularised: ((W, V), X, 2),
    used_in_part: ((W, V), X, 2),
    scanned: ((W, V), X, 2),
    along_other_axes: ((W, V), X, 2),
    divided_in_other_ways: ((W, V), X, 2),
    padded_in_other_places: (KERNELS, X, 2),
    dilated: (KERNELS, X, 2),
    rows_read_once_and_more_often: (TABLES, IDS, 2),
}


@pytest.mark.first(4)
@pytest.mark.parametrize(("loss", "strategy"), covering(list(TRACES), ["lift", "loop"]))
def test_what_differs_in_one_thing_has_its_own_trace(loss, strategy, traced):
    """Constants are what one trace is given."""
    params, batch, count = TRACES[loss]
    check(loss, params, batch, strategy=strategy)
    assert len(traced) == count


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_gradients_of_other_dtypes(strategy, traced):
    with jax.enable_x64(True):
        check(layers_of_dtypes, (W, V.astype(jnp.float64)), X, strategy=strategy)
    assert len(traced) == 2


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_a_users_function_sees_what_it_closes_over(strategy):
    """It closes over a traced number, once for all gradients, and twice."""

    @jax.jit
    def found(scale, other):
        statistics = {"one": hs.mean_of(lambda g: jnp.cos(scale * g))}
        statistics["other"] = hs.mean_of(lambda g: jnp.cos(other * g))
        asked = {"batch_argnums": 1, "statistics": statistics, "strategy": strategy}
        return hs.grad(layers, **asked)((W, V), X)[1]

    own = jax.vmap(lambda x: jax.grad(layers)((W, V), x[None]))(X)
    for name, scale in (("one", 2.0), ("other", 3.0)):
        expected = jax.tree.map(lambda g, s=scale: jnp.mean(jnp.cos(s * g), 0), own)
        assert_close(found(2.0, 3.0)[name], expected)


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_padding_is_known_in_what_is_shared(strategy, traced):
    real = jnp.array([True, True, False, True])

    def loss(params, x):
        own = jnp.mean(jnp.tanh(jnp.tanh(x @ params[0]) @ params[1]) ** 2, (1, 2))
        return jnp.sum(jnp.where(real, own, 0)) / jnp.maximum(jnp.sum(real), 1)

    asked = {"batch_argnums": 1, "is_real": real, "strategy": strategy}
    statistics = {name: hs.variance() if name == "norms" else s for name, s in STATISTICS.items()}
    found = jax.jit(hs.grad(loss, statistics=statistics, **asked))((W, V), X)[1]
    own = jax.vmap(lambda x: jax.grad(layers)((W, V), x[None]))(X[real])
    assert_close(found["cosines"], jax.tree.map(lambda g: jnp.mean(jnp.cos(g), 0), own))
    assert_close(found["norms"], jax.tree.map(lambda g: jnp.var(g, 0, ddof=1), own))
    assert len(traced) == 1


@pytest.mark.first(4)
@pytest.mark.parametrize("strategy", ["lift", "loop"])
@pytest.mark.parametrize("loss", [layers, *TRACES], ids=lambda loss: loss.__name__)
def test_what_is_shared_is_what_each_would_have_had(loss, strategy, monkeypatch):
    asked = {"batch_argnums": 1, "statistics": STATISTICS, "strategy": strategy}
    params, batch, _ = TRACES.get(loss, ((W, V), X, 1))

    def text():
        return jax.jit(hs.grad(loss, **asked)).lower(params, batch).as_text()

    shared = text()
    monkeypatch.setattr(alike, "LIFT", None)
    monkeypatch.setattr(alike, "LOOP", None)
    assert text() == shared
