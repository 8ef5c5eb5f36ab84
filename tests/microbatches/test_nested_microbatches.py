"""Gradients that loops within loops add up: statistics in the innermost steps.

The references are the gradients of one example at a time, in float64.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
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
FLAGS = np.array([1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 1], np.float32)
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


def counted(p, x):
    def outer(i, total):
        def inner(j, total):
            part = lax.dynamic_slice_in_dim(x, 4 * i + 2 * j, 2)
            return jax.tree.map(lambda t, g: t + g / 6, total, GRADIENT(p, part))

        return lax.fori_loop(0, INNER, inner, total)

    return lax.fori_loop(0, OUTER, outer, zeros(p))


CASES = {
    "handed on": handed_on,
    "result added": result_added,
    "means added": means_added,
    "in the loss": in_the_loss,
    "three deep": three_deep,
}
IN_OTHER_ORDERS = {
    "backwards": partial(handed_on, inner=lambda x: parts(x)[::-1, ::-1]),
    "strides": partial(handed_on, inner=lambda x: parts(x).swapaxes(0, 2).reshape(3, 2, 2, -1)),
    "counted": counted,
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


@pytest.mark.parametrize("name", IN_OTHER_ORDERS)
def test_parts_in_orders_that_are_not_shown_are_refused(name):
    with pytest.raises(hs.Refusal, match=r"example's gradient its own|permute"):
        hs.rewrite(IN_OTHER_ORDERS[name], batch_argnums=1, statistics=STATISTICS)(PARAMS, X)


@pytest.mark.parametrize("name", ["handed on", "means added", "three deep"])
def test_padding_counts_nowhere(name, steps_taken):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=STATISTICS, is_real=FLAGS)
    own = jax.tree.map(lambda g: g * FLAGS.sum() / B, examples(x=X))
    assert_right(f(PARAMS, X)[1], expected(own, FLAGS))
    assert len(steps_taken) == 1


def twice(p, x):
    """Both steps of an inner loop take the same examples."""
    rows = jnp.repeat(x.reshape(OUTER, 1, -1, WIDTH), INNER, 1)
    return handed_on(p, x, inner=lambda _: rows)
