"""Functions of one example's whole gradient, against NumPy on one gradient at a time in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
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


def flat(tree):
    return np.concatenate([g.reshape(len(g), -1) for g in jax.tree.leaves(tree)], axis=1)


def close(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * np.abs(b).max())


def orthogonal(g):
    """As Muon's update, by steps of Newton and Schulz, of the last two dimensions; vectors stay as
    they are. For NumPy and JAX.
    """
    if g.ndim < 2:
        return g
    x = g / (1e-30 + (g**2).sum((-2, -1), keepdims=True)) ** 0.5
    for _ in range(5):
        x = 1.5 * x - 0.5 * x @ x.swapaxes(-2, -1) @ x
    return x


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["convolution", "scans"])
def test_orthogonalised_updates(name, strategy):
    """Of a scan over layers the function sees the whole stack, [layers, ...]."""
    _, examples = examples_in_float64(MODELS[name])
    found = found_in_float64(name, hs.sum_of(orthogonal), strategy=strategy)
    close(found, jax.tree.map(lambda g: sum(map(orthogonal, g)), examples))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["tied", "scans", "sum"])
def test_shampoo_of_whole_trees(name, strategy):
    """Preconditioners of each parameter, of gradients scaled by the norm of all."""

    def preconditioners(tree):
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(tree)))
        return jax.tree.map(lambda g: jnp.einsum("...j,...k->jk", g, g) / norm, tree)

    def of_examples(g, norms):
        rows = g.reshape(len(g), -1, g.shape[-1])
        return np.einsum("bij,bik,b->jk", rows, rows, 1 / norms)

    _, examples = examples_in_float64(MODELS[name])
    found = found_in_float64(name, hs.sum_of(preconditioners, "global"), strategy=strategy)
    norms = np.linalg.norm(flat(examples), axis=1)
    close(found, jax.tree.map(lambda g: of_examples(g, norms), examples))


WRONG = {
    "no function": (lambda: hs.sum_of(3), TypeError, "takes a function"),
    "a prefix": (lambda: hs.sum_of(jnp.sum, {"w": 0}), ValueError, "'parameter' or per='global'"),
    "a tuple": (lambda: hs.sum_of(lambda g: (g, g)), TypeError, "returns one array"),
    "nothing": (lambda: hs.sum_of(lambda tree: {}, "global"), TypeError, "returns none"),
    "of": (lambda: hs.weighted_mean(jnp.sum, of="losses"), ValueError, "of='gram'"),
    "squares": (lambda: hs.weighted_second_moment(2.0), TypeError, "weighted_second_moment(lambda"),
    "a limit": (lambda: hs.clipped_second_moment(0), ValueError, "clipped_second_moment takes"),
    "k": (lambda: hs.top_directions(0), ValueError, "integer k >= 1"),
    "large k": (lambda: hs.top_directions(9), ValueError, "at least 9 examples"),
    "all pairs": (
        lambda: hs.weighted_mean(lambda gram: gram, of="gram"),
        ValueError,
        "one for each example",
    ),
}


@pytest.mark.parametrize(("made", "error", "said"), WRONG.values(), ids=WRONG)
def test_wrong_use(made, error, said):
    def asked():
        f = hs.grad(lambda w, x: jnp.mean(x @ w), statistics=made())
        return f(jnp.ones(3), jnp.eye(4, 3))

    with pytest.raises(error) as problem:
        asked()
    assert said in str(problem.value)


@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 5))])
@pytest.mark.parametrize("name", ["mlp", "convolution", "scans", "sum"])
def test_top_directions_are_singular_vectors(name, k):
    found = found_in_float64(name, hs.top_directions(k))
    _, examples = examples_in_float64(MODELS[name])
    u, s, v = np.linalg.svd(flat(examples), full_matrices=False)
    signs = np.sign(u[np.abs(u).argmax(0), np.arange(len(s))])
    np.testing.assert_allclose(found.singular_values, s[:k], rtol=1e-9)
    np.testing.assert_allclose(flat(found.directions), (signs * v.T).T[:k], atol=1e-8)


def test_weights_of_inner_products_project_conflicts_away():
    """PCGrad, each against all others at once: weights solve what its projections leave."""

    def without_opposed(gram):
        cosines = jnp.minimum(gram, 0) / jnp.diagonal(gram)
        return 1 - (cosines - jnp.diag(jnp.diagonal(cosines))).sum(0)

    found = found_in_float64("mlp", hs.weighted_mean(without_opposed, of="gram"))
    _, examples = examples_in_float64(MODELS["mlp"])
    g = flat(examples)
    total = g.sum(0)
    for i, one in enumerate(g):
        for j, other in enumerate(g):
            product = one @ other
            if i != j and product < 0:
                total = total - product / (other @ other) * other
    np.testing.assert_allclose(flat(jax.tree.map(lambda x: x[None], found))[0], total / len(g))


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
