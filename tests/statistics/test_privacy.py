"""Clipped means as in differentially private training: other libraries, and what they promise."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.statistics.statistic_models import MODELS, draws, examples_in_float64

ROUNDING = 64 * float(np.finfo(np.float32).eps)
MAX_NORM = 0.5
CLIP = hs.clipped_mean(MAX_NORM)


@cache
def clipping(name):
    model, statistic = MODELS[name], hs.clipped_mean(MAX_NORM, nan_safe=False)
    return hs.grad(model.loss, batch_argnums=range(1, 1 + len(model.batch)), statistics=statistic)


def clipped_sum(name, *first):
    """B times the clipped mean, with another first array of the batch where one is given."""
    model = MODELS[name]
    _, mean = clipping(name)(model.params, *first, *model.batch[len(first) :])
    return jax.tree.map(lambda x: model.size * np.asarray(x), mean)


def length(tree):
    return np.sqrt(
        sum(np.sum(np.abs(leaf).astype(np.float64) ** 2) for leaf in jax.tree.leaves(tree))
    )


def clip(tree):
    factor = min(1, MAX_NORM / length(tree))
    return jax.tree.map(lambda g: factor * g, tree)


def assert_close(found, expected):
    """Within the roundings of a sum of clipped gradients."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for actual, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, value, rtol=0, atol=ROUNDING * MAX_NORM)


@cache
def gradients(name):
    """Each example's gradient in float64, as a list."""
    model = MODELS[name]
    _, found = examples_in_float64(model)
    return [jax.tree.map(lambda g, b=b: g[b], found) for b in range(model.size)]


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["mlp", "tied", "scans"])
def test_as_jax_privacy_does(name):
    jax_privacy = pytest.importorskip("jax_privacy")
    model = MODELS[name]
    clipped = jax_privacy.clipped_grad(
        model.loss, l2_clip_norm=MAX_NORM, batch_argnums=tuple(range(1, 1 + len(model.batch)))
    )
    assert_close(
        clipped_sum(name), jax.tree.map(np.asarray, jax.jit(clipped)(model.params, *model.batch))
    )


@pytest.mark.parametrize("name", ["mlp", "scans"])
def test_replacing_one_example_moves_the_sum_by_at_most_twice_max_norm(name):
    first = np.array(MODELS[name].batch[0])
    for factor in (0.0, 1.0, 1e4):
        first[0] = factor * draws(9)(*first.shape[1:])
        moved = jax.tree.map(np.subtract, clipped_sum(name), clipped_sum(name, first))
        assert 0 < length(moved) <= 2 * MAX_NORM * (1 + ROUNDING)


def padded(p, batch):
    """A sum in which padding weighs nothing."""
    return jnp.sum(batch["real"] * jnp.sum(jnp.tanh(batch["x"] @ p["a"] + p["b"]) ** 2, -1))


def in_steps(p, batch):
    """The same, two rows at a time."""
    parts = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), batch)

    def add(total, part):
        return jax.tree.map(jnp.add, total, jax.grad(padded)(p, part)), None

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), parts)[0]


@pytest.mark.parametrize(
    ("rewritten", "function"), [(hs.grad, padded), (hs.rewrite, in_steps)], ids=["sum", "steps"]
)
def test_a_clipped_sum_is_moved_by_one_example_alone(rewritten, function):
    """Whatever the others are, and however many are real: by its own clipped gradient."""
    params = {"a": draws(1)(3, 4), "b": draws(2)(4)}
    x = 3 * draws(3)(8, 3)
    how = {"loss_reduction": "sum", "is_real": lambda p, batch: batch["real"], "batch_argnums": 1}
    f = jax.jit(rewritten(function, statistics=hs.clipped_sum(MAX_NORM), **how))

    def found(real):
        return f(params, {"x": x, "real": np.float32(real)})[1]

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, x))
        one = {"x": wide[1][5:6], "real": np.ones(1)}
        own = clip(jax.grad(padded)(wide[0], one))
    for others in ([1, 1, 1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0, 0, 0], [0] * 8):
        added = [*others[:5], 1, *others[6:]]
        assert_close(jax.tree.map(np.subtract, found(added), found(others)), own)


@pytest.mark.parametrize("statistic", [hs.clipped_mean, hs.clipped_sum, hs.clipped_second_moment])
def test_private_statistics_are_finite_whatever_one_example_is(statistic):
    x = np.array([[3.0, 4.0], [np.nan, 1.0], [np.inf, 2.0]], np.float32)
    f = hs.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w)), statistics=statistic(MAX_NORM))
    zeros = np.where(np.isfinite(x).all(1, keepdims=True), x, 0)
    np.testing.assert_array_equal(f(np.ones(2), x)[1], f(np.ones(2), zeros)[1])


def weighted(p, weights, x, y):
    """A mean over the batch in which padding has weight zero."""
    alone = jax.vmap(lambda *example: MODELS["mlp"].loss(p, *(a[None] for a in example)))
    return jnp.mean(weights * alone(x, y))


GROUPS = {
    "global": ("global", lambda tree: [tree]),
    "parameter": ("parameter", jax.tree.leaves),
    "prefix": ({"hidden": 0, "output": 0}, lambda tree: list(tree.values())),
    "labels": ({"hidden": "a", "output": "b"}, lambda tree: list(tree.values())),
    "one label": ({"hidden": "a", "output": "a"}, lambda tree: [tree]),
}


@pytest.mark.parametrize(("per", "groups"), GROUPS.values(), ids=GROUPS.keys())
def test_padding_counts_for_nothing_and_no_group_of_an_example_is_longer_than_max_norm(per, groups):
    """With all others as padding, however large, the sum is one example's own."""
    model = MODELS["mlp"]
    f = hs.grad(weighted, batch_argnums=(1, 2, 3), statistics=hs.clipped_mean(MAX_NORM, per))
    for b, own in enumerate(gradients("mlp")):
        alone = (np.arange(model.size) == b).astype(np.float32)
        x = np.where(alone[:, None], model.batch[0], 1e4).astype(np.float32)
        _, mean = f(model.params, alone, x, model.batch[1])
        clipped = jax.tree.map(lambda m: model.size * np.asarray(m), mean)
        assert all(length(group) <= MAX_NORM * (1 + ROUNDING) for group in groups(clipped))
        assert_close(groups(clipped), [clip(group) for group in groups(own)])


def masked_mean(p, x, mask):
    """The count of the mask is a constant for other statistics."""
    return jnp.sum(mask * jnp.sum(jnp.tanh(x @ p) ** 2, -1)) / jnp.sum(mask)


def batch_norm(p, x, mask):
    h = x @ p
    return jnp.mean(mask * jnp.sum(((h - h.mean(0)) / jnp.sqrt(h.var(0) + 0.1)) ** 3, -1))


@pytest.mark.parametrize(
    ("loss", "on_mixing"), [(masked_mean, "refuse"), (batch_norm, "contribution")]
)
def test_what_lets_one_example_act_on_the_others_is_refused(loss, on_mixing):
    arguments = (draws(0)(4, 3), draws(1)(6, 4), np.float32([1, 1, 0, 1, 1, 0]))
    options = {"batch_argnums": (1, 2), "on_mixing": on_mixing}
    hs.grad(loss, statistics=hs.norms(), **options)(*arguments)
    said = (
        r"clipped_mean\(0.5\) bounds each example's influence, but here all examples meet in a "
        r"constant"
    )
    with pytest.raises(hs.Refusal, match=said) as refusal:
        hs.grad(loss, statistics={"clipped_mean(0.5)": CLIP, "norms": hs.norms()}, **options)(
            *arguments
        )
    assert refusal.value.where.startswith(__file__)
