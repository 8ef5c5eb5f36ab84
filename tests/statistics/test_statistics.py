"""Every public statistic of small models, against float64 NumPy on one gradient at a time."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.by_definition import (
    flat,
    length,
    noise_scale,
    top_directions,
    weighted,
    weighted_squares,
)
from tests.statistics.statistic_models import MODELS, draws, examples_in_float64

BINS = [-0.3, -0.1, 0.0, 0.05, 0.3]
# No sum here has more terms: an entry of a gradient is off by this many roundings of the largest.
TERMS = 64
ROUNDING = TERMS * float(np.finfo(np.float32).eps)


def inner(a, b):
    return np.real(flat(a) @ flat(b).conj().T)


def against(direction):
    return lambda g: inner(g, jax.tree.map(lambda v: v[None], direction))[:, 0]


def mean(tree):
    return jax.tree.map(lambda g: g.mean(0), tree)


def every_leaf(function):
    return lambda tree: jax.tree.map(function, tree)


def each_prefix(function):
    return lambda tree: {key: function(part) for key, part in tree.items()}


def signal_to_noise(tree):
    g = flat(tree)
    return np.linalg.norm(g.mean(0)) / np.sqrt(np.sum(np.var(g, 0, ddof=1)))


def clipping(tree):
    return np.minimum(1, 0.5 / length(tree))


def clipped(tree):
    return weighted(clipping(tree), tree)


def clipped_squares(tree):
    return weighted_squares(clipping(tree), tree)


def less_alike(gram):
    """Weights that are smaller the more gradients point the same way; for NumPy and JAX."""
    return 1 / (1 + gram.clip(0).sum(1))


def with_gram(tree):
    return weighted(less_alike(inner(tree, tree)), tree)


def columns(g):
    """The products of all pairs of columns, for NumPy and JAX."""
    rows = g.reshape(-1, g.shape[-1]) if g.ndim else g.reshape(1, 1)
    return rows.conj().T @ rows


def of_whole(xp):
    """The gradient in the direction of its own norm, and that; of one example."""

    def function(tree):
        norm = xp.sqrt(sum(xp.sum(xp.abs(g) ** 2) for g in jax.tree.leaves(tree)))
        return {"unit": jax.tree.map(lambda g: g / (1 + norm), tree), "norm": norm}

    return function


def summed(function):
    """The sum over the examples of what a function makes of one example's tree."""

    def reference(tree):
        count = len(jax.tree.leaves(tree)[0])
        each = [function(jax.tree.map(lambda g, b=b: g[b], tree)) for b in range(count)]
        return jax.tree.map(lambda *x: np.sum(x, 0), *each)

    return reference


def auto_s(n):
    return 1 / (n + 0.01)


def psac(n):
    return 0.5 / (n + 0.1 / (n + 0.1))


def to_median(xp):
    return lambda n: xp.minimum(1, xp.quantile(n, 0.5) / n)


SINE = [(1.0, hs.mean_power(1)), (-1 / 6, hs.mean_power(3)), (1 / 120, hs.mean_power(5))]
MEANS = {
    "second_moment": (hs.second_moment(), lambda g: np.abs(g) ** 2),
    "mean_of": (hs.mean_of(lambda g: jnp.tanh(jnp.abs(g))), lambda g: np.tanh(np.abs(g))),
    "factorable": (hs.mean_of(lambda g: g * jnp.abs(g), factorable=True), lambda g: g * np.abs(g)),
    "mean_sign": (hs.mean_sign(), np.sign),
    "mean_abs": (hs.mean_abs(), np.abs),
    "mean_power": (hs.mean_power(3), lambda g: g**3),
    "polynomial": (hs.polynomial([1, -2, 0.5, 3]), lambda g: 1 - 2 * g + 0.5 * g**2 + 3 * g**3),
    "taylor_series": (hs.linear_combination(SINE), lambda g: g - g**3 / 6 + g**5 / 120),
}
OF_REAL = {
    "mean_of_clipped_entries": (
        hs.mean_of_clipped_entries(0.1),
        every_leaf(lambda g: np.clip(g, -0.1, 0.1).mean(0)),
    ),
    "histogram": (hs.histogram(BINS), every_leaf(lambda g: np.histogram(g, BINS)[0])),
    "top": (hs.top_directions(1), lambda g: top_directions(g, 1)),
}
OF_TWO = {
    "variance": (hs.variance(), every_leaf(lambda g: np.var(g, 0, ddof=1))),
    "snr": (hs.snr(), every_leaf(lambda g: np.abs(g.mean(0)) / np.std(g, 0, ddof=1))),
    "snr_each": (hs.snr("parameter"), every_leaf(signal_to_noise)),
    "snr_all": (hs.snr("global"), signal_to_noise),
    "noise_scale": (hs.noise_scale(), noise_scale),
    "noise_each": (hs.noise_scale("parameter"), every_leaf(noise_scale)),
}


def of_any(params):
    """Those for any model, of which some take its parameters' structure."""
    prefix = dict.fromkeys(params, 0)
    direction = jax.tree.map(lambda p: draws(7)(*p.shape).astype(p.dtype), params)
    several = [jax.tree.map(lambda d, k=k: d**k, direction) for k in range(1, 12)]
    return {
        **{name: (s, every_leaf(lambda g, f=f: f(g).mean(0))) for name, (s, f) in MEANS.items()},
        "biased_variance": (hs.variance(unbiased=False), every_leaf(lambda g: np.var(g, 0))),
        **{f"norms{p}": (hs.norms(ord=p), lambda g, p=p: length(g, p)) for p in (1, 2, 3, np.inf)},
        "norms_each": (hs.norms("parameter"), every_leaf(length)),
        "norms_prefix": (hs.norms(prefix, ord=1), each_prefix(lambda g: length(g, 1))),
        "gram": (hs.gram(), lambda g: inner(g, g)),
        "gram_each": (hs.gram("parameter"), every_leaf(lambda g: inner(g, g))),
        "gram_prefix": (hs.gram(prefix), each_prefix(lambda g: inner(g, g))),
        "inner_mean": (hs.inner_products(), lambda g: against(mean(g))(g)),
        "inner_given": (hs.inner_products(direction), against(direction)),
        "inner_many": (
            hs.inner_products(jax.tree.map(lambda *d: jnp.stack(d), *several)),
            lambda g: np.stack([against(d)(g) for d in several], -1),
        ),
        "inner_each": (
            hs.inner_products(per="parameter"),
            every_leaf(lambda g: against(g.mean(0))(g)),
        ),
        "clipped": (hs.clipped_mean(0.5), clipped),
        "clipped_each": (hs.clipped_mean(0.5, "parameter"), every_leaf(clipped)),
        "clipped_prefix": (hs.clipped_mean(0.5, prefix), each_prefix(clipped)),
        "auto_s": (hs.weighted_mean(auto_s), lambda g: weighted(auto_s(length(g)), g)),
        "psac": (hs.weighted_mean(psac), lambda g: weighted(psac(length(g)), g)),
        "to_median": (
            hs.weighted_mean(to_median(jnp)),
            lambda g: weighted(to_median(np)(length(g)), g),
        ),
        "gram_weights": (hs.weighted_mean(less_alike, of="gram"), with_gram),
        "clipped_squares": (hs.clipped_second_moment(0.5), clipped_squares),
        "clipped_squares_prefix": (
            hs.clipped_second_moment(0.5, prefix),
            each_prefix(clipped_squares),
        ),
        "auto_s_squares": (
            hs.weighted_second_moment(auto_s),
            lambda g: weighted_squares(auto_s(length(g)), g),
        ),
        "sum_of": (hs.sum_of(columns), every_leaf(summed(columns))),
        "sum_of_all": (hs.sum_of(of_whole(jnp), "global"), summed(of_whole(np))),
        "per_example": (hs.per_example(), lambda g: g),
    }


def cases(name):
    model = MODELS[name]
    found = of_any(model.params) | (OF_TWO if model.size > 1 else {})
    return found | (OF_REAL if name != "complex" else {})


@cache
def answers(name):
    """What the rewritten function returns, the examples' losses and gradients in float64."""
    model = MODELS[name]
    asked = {key: statistic for key, (statistic, _) in cases(name).items()} | {
        "losses": hs.per_example_losses()
    }
    arguments = tuple(range(1, 1 + len(model.batch)))
    f = hs.value_and_grad(
        model.loss, batch_argnums=arguments, statistics=asked, loss_reduction=model.reduction
    )
    found = jax.tree.map(np.asarray, f(model.params, *model.batch))
    return (*found, *examples_in_float64(model))


def moved(examples, rng):
    """Gradients with every entry as far off as roundings may put it; what is zero stays so."""
    largest = np.abs(flat(examples)).max()
    return jax.tree.map(
        lambda g: g + ROUNDING * largest * rng.choice([-1, 1], g.shape) * (g != 0), examples
    )


def assert_statistic(found, reference, examples, name=""):
    """Within twice what the reference moves by when the gradients do, and its own roundings."""
    rng, expected = np.random.default_rng(0), reference(examples)
    others = [reference(moved(examples, rng)) for _ in range(16)]
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for actual, value, *near in zip(*map(jax.tree.leaves, (found, expected, *others)), strict=True):
        assert np.shape(actual) == np.shape(value)
        moves = 2 * np.max([np.abs(x - value) for x in near], 0) + ROUNDING * np.abs(value)
        same = (np.abs(actual - value) <= moves) | (np.isnan(actual) & np.isnan(value))
        assert np.all(same), f"{name}: {actual} is not {value} within {moves}"


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
@pytest.mark.parametrize("model", MODELS)
def test_every_statistic(model):
    _, found, _, examples = answers(model)
    for name, (_, reference) in cases(model).items():
        assert_statistic(found[name], reference, examples, name)


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_as_they_were(name):
    model = MODELS[name]
    (value, gradient), found, losses, examples = answers(name)
    total = np.mean if model.reduction == "mean" else np.sum
    np.testing.assert_allclose(found["losses"], losses, rtol=ROUNDING)
    np.testing.assert_allclose(value, total(losses), rtol=ROUNDING)
    assert_statistic(gradient, every_leaf(lambda g: total(g, 0)), examples)
