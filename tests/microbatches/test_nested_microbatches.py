"""Gradients that loops within loops add up: statistics in the innermost steps.

The references are the gradients of one example at a time, in float64.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hlo_surgery as hs
from tests.microbatches.microbatch_statistics import (
    NOISE,
    PARAMS,
    REWEIGHTING,
    SPREADS,
    STATISTICS,
    WIDTH,
    assert_right,
    draw,
    examples,
    expected,
    mean_of,
    sums_of,
)

OUTER, INNER, B = 3, 2, 12
X = draw(7, B, WIDTH)
GRADIENT = jax.grad(mean_of)


def added(a, b):
    return jax.tree.map(jnp.add, a, b)


def zeros(p):
    return jax.tree.map(jnp.zeros_like, p)


def parts(x):
    return x.reshape(OUTER, INNER, -1, *x.shape[1:])


def of_all(g):
    return g / (OUTER * INNER)


def handed_on(p, x, step=GRADIENT, inner=parts):
    """One sum, which each loop within takes and returns."""

    def outer(total, rows):
        return lax.scan(lambda t, part: (added(t, step(p, part)), None), total, rows)[0], None

    return jax.tree.map(of_all, lax.scan(outer, zeros(p), inner(x))[0])


def result_added(p, x, step=GRADIENT, behind=lambda g: g):
    """A sum of each loop within, which is added to the sum of all."""
    within = partial(sums_of, p, partial(step, p), behind=behind)
    return sums_of(p, within, parts(x), of_all)


def means_added(p, x):
    means = result_added(p, x, behind=lambda g: g / INNER)
    return jax.tree.map(lambda g: g * INNER, means)


def in_the_loss(p, x):
    def loss(p):
        return jnp.mean(lax.map(lambda rows: lax.map(partial(mean_of, p), rows), parts(x)))

    return jax.grad(loss)(p)


def three_deep(p, x):
    def outer(total, rows):
        return lax.scan(inner, total, rows)[0], None

    def inner(total, part):
        return added(total, sums_of(p, lambda row: GRADIENT(p, row[None]), part)), None

    total, _ = lax.scan(outer, zeros(p), parts(x))
    return jax.tree.map(lambda g: g / B, total)


CASES = {
    "handed on": handed_on,
    "result added": result_added,
    "means added": means_added,
    "in the loss": in_the_loss,
    "three deep": three_deep,
}
ASKED = pytest.mark.parametrize(
    "statistics", [STATISTICS, REWEIGHTING, SPREADS | NOISE], ids=["measures", "weights", "spreads"]
)


@ASKED
@pytest.mark.parametrize("name", CASES)
def test_every_statistic_of_every_form(name, statistics, steps_taken):
    gradient, found = hs.rewrite(CASES[name], batch_argnums=1, statistics=statistics)(PARAMS, X)
    own = examples(x=X)
    assert_right({"plain": gradient}, {"plain": jax.tree.map(lambda x: x.mean(0), own)})
    assert_right(found, expected(own))
    assert steps_taken == [B if name == "three deep" else OUTER * INNER]
