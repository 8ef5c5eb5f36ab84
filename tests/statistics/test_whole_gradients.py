"""Functions of one example's whole gradient, against NumPy on one gradient at a time in float64.

Of one that is no number nothing is a number, or it is left out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.by_definition import flat, top_directions
from tests.products import covering
from tests.statistics.statistic_models import MODELS, examples_in_float64, in_float64

STRATEGIES = ["auto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lift", "loop"))]


def found_in_float64(name, statistic, **how):
    model = MODELS[name]
    with jax.enable_x64(True):
        f = hs.grad(
            model.loss,
            batch_argnums=tuple(range(1, 1 + len(model.batch))),
            statistics=statistic,
            loss_reduction=model.reduction,
            **how,
        )
        params, batch = in_float64(model.params), in_float64(model.batch)
        return jax.tree.map(np.asarray, f(params, *batch)[1])


def close(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(b).max())


def orthogonal(g):
    """Muon's update, by steps of Newton and Schulz; vectors stay. For NumPy and JAX."""
    if g.ndim < 2:
        return g
    x = g / (1e-30 + (g**2).sum((-2, -1), keepdims=True)) ** 0.5
    for _ in range(5):
        x = 1.5 * x - 0.5 * x @ x.swapaxes(-2, -1) @ x
    return x


@pytest.mark.first(1)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["convolution", "scans"])
def test_orthogonalised_updates(name, strategy):
    """Of a scan over layers the function sees the whole stack, [layers, ...]."""
    _, examples = examples_in_float64(MODELS[name])
    found = found_in_float64(name, hs.sum_of(orthogonal), strategy=strategy)
    close(found, jax.tree.map(lambda g: sum(map(orthogonal, g)), examples))


@pytest.mark.first(1)
@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 5))])
@pytest.mark.parametrize("name", ["mlp", "convolution", "scans", "sum"])
def test_top_directions_are_singular_vectors(name, k):
    found = found_in_float64(name, hs.top_directions(k))
    _, examples = examples_in_float64(MODELS[name])
    wanted = top_directions(examples, k)
    np.testing.assert_allclose(found.singular_values, wanted.singular_values, rtol=1e-9)
    np.testing.assert_allclose(flat(found.directions), flat(wanted.directions), atol=1e-8)


@pytest.mark.parametrize("of", ["norms", "gram"])
def test_examples_that_are_not_finite_are_left_out(of):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    x[1, 2] = np.inf
    ones = {
        "mean": hs.weighted_mean(lambda taken: jnp.ones(len(taken)), nan_safe=True, of=of),
        "squares": hs.weighted_second_moment(
            lambda taken: jnp.ones(len(taken)) + 0 * taken.sum(), nan_safe=True, of=of
        ),
    }
    _, found = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=ones)(jnp.ones(3), x)
    rest = np.delete(x, 1, 0)
    np.testing.assert_allclose(found["mean"], rest.sum(0) / 4, rtol=1e-6)
    np.testing.assert_allclose(found["squares"], (rest**2).sum(0) / 4, rtol=1e-6)


def of_rows(p, rows, y):
    """The last row of the table is looked up by nobody."""
    return jnp.mean(y * jnp.sum(jnp.tanh(p["w"][rows]), -1))


def of_bags(p, rows, y):
    return of_rows(p, jnp.stack([rows, rows], 1), y[:, None])


def of_the_first_rows(p, rows, y):
    return jnp.mean(y * jnp.sum(jnp.tanh(rows[:, None] + p["w"][:2].reshape(-1)), -1))


def of_a_triangle(p, rows, y):
    one_hot = jnp.eye(3)[rows]
    return jnp.mean(y * jnp.sum(jnp.tanh(one_hot @ jnp.tril(p["w"])), -1))


WEIGHTED = {
    "clipped": hs.clipped_mean(0.5, nan_safe=False),
    "squares": hs.clipped_second_moment(0.5, nan_safe=False),
    "weighted": hs.weighted_mean(lambda norms: 1 / (1 + norms)),
    "directions": hs.top_directions(2),
}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("loss", "strategy"),
    covering([of_rows, of_bags, of_the_first_rows, of_a_triangle], ["auto", "lift", "loop"]),
)
def test_nan_times_the_weight_of_nan_is_in_every_element(loss, strategy):
    p, rows = {"w": jnp.arange(9.0).reshape(3, 3) / 9}, jnp.array([0, 1, 0])
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=WEIGHTED, strategy=strategy)
    found = f(p, rows, jnp.array([1.0, np.nan, 2.0]))[1]
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(found))


# A parameter's shape, and the examples' axis: XLA's fusions sum some rows wrongly (0.10, CPU).
SUMMED = {"rows": ((10, 4096), 0), "positions too": ((10, 512), 0), "examples last": ((16, 300), 2)}


@pytest.mark.first(1)
@pytest.mark.parametrize("statistic", [hs.clipped_mean(1.0), hs.weighted_mean(lambda n: 1 / n)])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SUMMED)
def test_weighted_sums_of_rows(name, strategy, statistic):
    shape, axis = SUMMED[name]
    rows = (5, *shape) if name == "positions too" else shape

    def loss(w, x):
        return jnp.mean(jnp.sum(jnp.tanh(jnp.moveaxis(x, axis, 0) + w), range(1, x.ndim)))

    keys = jax.random.split(jax.random.key(0))
    w, own = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], (8, *rows))
    each = jax.vmap(lambda x: jax.grad(loss)(w, jnp.expand_dims(x, axis)))(own)
    norms = np.linalg.norm(each.reshape(8, -1), axis=1)
    weights = np.minimum(1, 1 / norms) if statistic == hs.clipped_mean(1.0) else 1 / norms
    f = hs.grad(loss, statistics=statistic, in_axes=axis, strategy=strategy)
    wanted = np.einsum("b,b...->...", weights, np.asarray(each, np.float64)) / 8
    found = f(w, jnp.moveaxis(own, 0, axis))[1]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())
