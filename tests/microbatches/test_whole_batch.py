"""Statistics of accumulated gradients that rest on what all examples have: of the whole batch.

The references are the gradients of one example at a time, in float64.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.microbatches import test_microbatches, test_nested_microbatches
from tests.microbatches.microbatch_statistics import (
    BOUND,
    FLAGS,
    PARAMS,
    X,
    assert_right,
    examples,
    norm,
)

CASES = test_microbatches.CASES
NESTED = test_nested_microbatches.CASES


def below_the_median(norms):
    """Weights of which each rests on the norms of all."""
    return jnp.minimum(1, jnp.median(norms) / norms)


def of_norms(norms):
    """Another weight for each place in the batch."""
    return (1 + jnp.arange(norms.size)) / norms.max()


STATISTICS = {
    "products": hs.inner_products("mean"),
    "products by parameter": hs.inner_products("mean", per="parameter"),
    "median": hs.weighted_mean(below_the_median),
    "places": hs.weighted_mean(of_norms, per="parameter"),
    "squares of places": hs.weighted_second_moment(of_norms, per="parameter"),
    "clipped": hs.clipped_mean(BOUND),
    "norms": hs.norms(),
    "squares": hs.second_moment(),
}


def product(x, d):
    return np.tensordot(x, d, x.ndim - 1)


def expected(g, real=None):
    """All of them, of these examples' gradients, or of those that are real."""
    leaves = jax.tree.leaves(g)
    real = np.ones(len(leaves[0])) if real is None else real
    count = real.sum()

    def mean(weights, x):
        return np.tensordot(weights * real, x, 1) / count

    ones = np.ones_like(real)
    each = jax.tree.map(lambda x: product(x, mean(ones, x)) * real, g)
    norms = norm(g) * real
    alone = jax.tree.map(lambda x: norm([x]) * real, g)
    return {
        "products": sum(jax.tree.leaves(each)),
        "products by parameter": each,
        "median": jax.tree.map(partial(mean, np.asarray(below_the_median(norms))), g),
        "places": jax.tree.map(lambda n, x: mean(np.asarray(of_norms(n)), x), alone, g),
        "squares of places": jax.tree.map(
            lambda n, x: mean(np.asarray(of_norms(n)) ** 2, x**2), alone, g
        ),
        "clipped": jax.tree.map(partial(mean, BOUND / np.maximum(BOUND, norm(g))), g),
        "norms": norms,
        "squares": jax.tree.map(lambda x: mean(ones, x**2), g),
    }


@pytest.mark.parametrize("name", CASES)
def test_every_form(name, steps_taken):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=STATISTICS)
    gradient, found = f(PARAMS, X)
    own = examples(test_microbatches.recurrent) if name == "recurrent" else examples()
    assert_right({"plain": gradient}, {"plain": jax.tree.map(lambda x: x.mean(0), own)})
    assert_right(found, expected(own))
    assert not steps_taken


@pytest.mark.parametrize("name", ["handed on", "means added", "in the loss", "three deep"])
def test_loops_within_loops(name, steps_taken):
    x = test_nested_microbatches.X
    f = hs.rewrite(NESTED[name], batch_argnums=1, statistics=STATISTICS)
    assert_right(f(PARAMS, x)[1], expected(examples(x=x)))
    assert not steps_taken


def test_padding_counts_nowhere(steps_taken):
    # The median is of all norms, those of padding being zero; clipping needs a sum of losses.
    asked = {name: s for name, s in STATISTICS.items() if name not in ("median", "clipped")}
    f = hs.rewrite(
        lambda *args: test_microbatches.by_weights(*args)[0],
        batch_argnums=(1, 2),
        statistics=asked,
        is_real=FLAGS,
    )
    assert_right(f(PARAMS, X, FLAGS)[1], expected(examples(), FLAGS))
    assert not steps_taken


def test_an_example_that_is_not_finite(steps_taken):
    x = X.copy()
    x[1, 0] = np.inf
    asked = hs.weighted_mean(lambda norms: jnp.ones_like(norms), nan_safe=True)
    found = hs.rewrite(CASES["runs"], batch_argnums=1, statistics=asked)(PARAMS, x)[1]
    rest = np.delete(np.arange(len(X)), 1)
    wanted = jax.tree.map(lambda g: g[rest].sum(0) / len(X), examples())
    assert_right({"weighted": found}, {"weighted": wanted})
    assert not steps_taken
