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
    along,
    assert_right,
    draw,
    examples,
    expected,
    mean_of,
    one,
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


def half_in_the_loss(p, x):
    step = jax.grad(lambda p, rows: jnp.mean(lax.map(partial(mean_of, p), rows)))
    return sums_of(p, partial(step, p), parts(x), lambda g: g / OUTER)


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
    "half in the loss": half_in_the_loss,
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


def by_weights(p, x, weights):
    """The sum of weights is known when both loops are done."""

    def inner(state, part):
        rows, own = part
        g = jax.grad(lambda p: jnp.sum(jax.vmap(one, (None, 0))(p, rows) * own))(p)
        return (added(state[0], g), state[1] + own.sum()), None

    def outer(state, rows):
        return lax.scan(inner, state, rows)[0], None

    start = zeros(p), jnp.zeros(())
    (total, count), _ = lax.scan(outer, start, (parts(x), parts(weights)))
    return jax.tree.map(lambda g: g / count, total)


def decayed(p, part):
    return mean_of(p, part) + 0.1 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))


def decayed_outside(p, x):
    """A constant that the outer loop adds to what the inner one has."""

    def outer(rows):
        return jax.tree.map(lambda g, w: g + 0.2 * w, sums_of(p, partial(GRADIENT, p), rows), p)

    return sums_of(p, outer, parts(x), of_all)


def from_the_parameters(p, x):
    """The inner loop starts at the parameters, for each step of the outer one."""

    def outer(total, rows):
        start = jax.tree.map(lambda w: 0.3 * w, p)
        step = lambda t, part: (added(t, GRADIENT(p, part)), None)  # noqa: E731
        return added(total, lax.scan(step, start, rows)[0]), None

    return jax.tree.map(of_all, lax.scan(outer, zeros(p), parts(x))[0])


def handed_on_halved(p, x):
    """What is handed on is not the sum: the first steps count less."""

    def outer(total, rows):
        half = jax.tree.map(lambda t: t / 2, total)
        return lax.scan(lambda t, part: (added(t, GRADIENT(p, part)), None), half, rows)[0], None

    return jax.tree.map(of_all, lax.scan(outer, zeros(p), parts(x))[0])


def looked_at(p, x, after):
    """What is handed on, or is there after, counts once more beside."""

    def outer(state, rows):
        total, beside = state
        following, _ = lax.scan(lambda t, part: (added(t, GRADIENT(p, part)), None), total, rows)
        return (following, added(beside, following if after else total)), None

    start = zeros(p), zeros(p)
    return jax.tree.map(of_all, added(*lax.scan(outer, start, parts(x))[0]))


def twice(p, x):
    """Both steps of an inner loop take the same examples."""
    rows = jnp.repeat(x.reshape(OUTER, 1, -1, WIDTH), INNER, 1)
    return handed_on(p, x, inner=lambda _: rows)


EVEN = np.ones(B)
LEFT = {
    "decay in each step": (partial(handed_on, step=jax.grad(decayed)), EVEN, 0.2),
    "decay outside": (decayed_outside, EVEN, 0.2 / INNER),
    "from the parameters": (from_the_parameters, EVEN, 0.3 / INNER),
    "halved": (handed_on_halved, np.repeat([0.25, 0.5, 1.0], 4), 0.0),
    "looked at": (partial(looked_at, after=False), np.repeat([3.0, 2.0, 1.0], 4), 0.0),
    "looked at after": (partial(looked_at, after=True), np.repeat([4.0, 3.0, 2.0], 4), 0.0),
}


@pytest.mark.parametrize(("gradient", "scale", "decay"), LEFT.values(), ids=LEFT.keys())
def test_what_is_no_sum_of_the_steps_is_left_to_lifting(gradient, scale, decay, steps_taken):
    statistics = {"squares": STATISTICS["squares"], "clipped": REWEIGHTING["clipped"]}
    found = hs.rewrite(gradient, batch_argnums=1, statistics=statistics)(PARAMS, X)[1]
    own = examples(x=X)
    own = jax.tree.map(lambda g, w: g * along(scale, g) + decay * w, own, PARAMS)
    assert_right(found, expected(own))
    assert not steps_taken
