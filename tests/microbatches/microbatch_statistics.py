"""Parameters, a batch, the gradient of one example, and all statistics of these, in float64."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import hlo_surgery as hs
from tests.by_definition import length, noise_scale, weighted, weighted_squares
from tools.exactness.projections_by_definition import projections_of

B, WIDTH, LAYERS, BOUND = 6, 5, 2, 0.3
TOLERANCE = 256 * float(jnp.finfo(jnp.float32).eps)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


PARAMS = {"w": draw(0, LAYERS, WIDTH, WIDTH) / 2, "v": draw(1, WIDTH)}
X = draw(2, B, WIDTH)
DIRECTION = jax.tree.map(np.cos, PARAMS)


def one(p, x):
    """One example's loss, through a scan over layers that is computed again."""
    h, _ = lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, p["w"])
    return jnp.sum((h * p["v"]) ** 2)


def recurrent(p, x):
    """The same weights at every step of a loop."""
    h, _ = lax.scan(lambda h, _: (jnp.tanh(h @ p["w"][0] + x), None), 0 * x, None, length=3)
    return jnp.sum((h * p["v"]) ** 2) + jnp.sum(x @ p["w"][1])


def mean_of(p, x, each=one):
    return jnp.mean(jax.vmap(each, (None, 0))(p, x))


def sums_of(p, step, parts, behind=lambda g: g):
    zeros = jax.tree.map(jnp.zeros_like, p)
    total, _ = lax.scan(lambda t, part: (jax.tree.map(jnp.add, t, step(part)), None), zeros, parts)
    return jax.tree.map(behind, total)


STATISTICS = {
    "squares": hs.second_moment(),
    "cosines": hs.mean_of(jnp.cos),
    "norms": hs.norms(),
    "by parameter": hs.norms("parameter", ord=1),
    "own": hs.per_example(),
    "projected": hs.projected(3),
    "columns": hs.sum_of(lambda g: jnp.cos(g.sum(0))),
    "counts": hs.histogram([-1e9, -0.1, 0.1, 1e9]),
}
SPREADS = {"variance": hs.variance(unbiased=False), "unbiased": hs.variance(), "norms": hs.norms()}
NOISE = {"noise": hs.noise_scale(), "noise by parameter": hs.noise_scale("parameter")}
REWEIGHTING = {
    "clipped": hs.clipped_mean(BOUND),
    "clipped squares": hs.clipped_second_moment(BOUND),
    "whole": hs.sum_of(lambda tree: jnp.cos(tree["w"].sum((1, 2)) * tree["v"].sum()), "global"),
    "products": hs.inner_products(DIRECTION),
    "norms": hs.norms(),
}


def below_the_median(norms):
    """Weights of which each rests on the norms of all."""
    return jnp.minimum(1, jnp.median(norms) / norms)


def of_places(norms):
    """Another weight for each place in the batch."""
    return (1 + jnp.arange(norms.size)) / norms.max()


# Of these a step does not have what it takes.
OF_THE_WHOLE = {
    "products with the mean": hs.inner_products("mean"),
    "products by parameter": hs.inner_products("mean", per="parameter"),
    "median": hs.weighted_mean(below_the_median),
    "places": hs.weighted_mean(of_places, per="parameter"),
    "squares of places": hs.weighted_second_moment(of_places, per="parameter"),
    **{name: REWEIGHTING[name] for name in ("clipped", "norms")},
    "squares": hs.second_moment(),
}


@cache
def gradients_of(each):
    """Of all examples, compiled once."""
    return jax.jit(jax.vmap(jax.grad(each), (None, 0)))


def examples(each=one, x=X):
    """[B, ...], in float64."""
    with jax.enable_x64(True):
        p = jax.tree.map(lambda a: np.asarray(a, np.float64), PARAMS)
        return jax.tree.map(np.asarray, gradients_of(each)(p, x.astype(np.float64)))


def product(x, d):
    return np.tensordot(x, d, x.ndim - 1)


def mean_over(g, phi):
    return jax.tree.map(lambda x: phi(x).mean(0), g)


def expected(g):
    """All statistics of these examples' gradients."""
    weights = BOUND / np.maximum(BOUND, length(g))
    inner = jax.tree.map(product, g, DIRECTION)
    with_mean = jax.tree.map(lambda x: product(x, x.mean(0)), g)
    median = np.asarray(below_the_median(length(g)))
    places = jax.tree.map(lambda x: np.asarray(of_places(length([x]))), g)
    return {
        "squares": mean_over(g, np.square),
        "cosines": mean_over(g, np.cos),
        "norms": length(g),
        "by parameter": jax.tree.map(lambda x: np.abs(x).reshape(len(x), -1).sum(1), g),
        "own": g,
        "projected": {
            name: projections_of(x, 3, 0, i) for i, (name, x) in enumerate(sorted(g.items()))
        },
        "variance": jax.tree.map(lambda x: np.var(x, 0), g),
        "unbiased": jax.tree.map(lambda x: np.var(x, 0, ddof=1), g),
        "counts": jax.tree.map(lambda x: np.histogram(x, [-1e9, -0.1, 0.1, 1e9])[0], g),
        "columns": jax.tree.map(lambda x: np.cos(x.sum(1)).sum(0), g),
        "clipped": weighted(weights, g),
        "clipped squares": weighted_squares(weights, g),
        "noise": noise_scale(g),
        "noise by parameter": jax.tree.map(noise_scale, g),
        "products with the mean": sum(jax.tree.leaves(with_mean)),
        "products by parameter": with_mean,
        "median": weighted(median, g),
        "places": jax.tree.map(weighted, places, g),
        "squares of places": jax.tree.map(weighted_squares, places, g),
        "whole": np.cos(g["w"].sum((2, 3)) * g["v"].sum(1, keepdims=True)).sum(0),
        "products": sum(jax.tree.leaves(inner)),
    }


def assert_right(found, wanted):
    for name, statistic in found.items():
        pairs = zip(jax.tree.leaves(statistic), jax.tree.leaves(wanted[name]), strict=True)
        for actual, value in pairs:
            scale = TOLERANCE * np.abs(value).max()
            np.testing.assert_allclose(actual, value, rtol=TOLERANCE, atol=scale, err_msg=name)
