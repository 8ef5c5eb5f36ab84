"""Gradients that a loop adds up over microbatches: statistics in its steps, in no more memory.

The references are the gradients of one example at a time, in float64.

This folder alone tests gradients that a program adds up over parts of the batch.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hlo_surgery as hs
from tests.microbatches.microbatch_statistics import (
    LAYERS,
    NOISE,
    PARAMS,
    REWEIGHTING,
    SPREADS,
    STATISTICS,
    WIDTH,
    B,
    X,
    assert_right,
    draw,
    examples,
    expected,
    mean_of,
    one,
    recurrent,
    sums_of,
)
from tests.products import covering

STEPS = 3


def over(parts, each=one):
    """Gradients of the means of parts, added up, and their mean."""

    def gradient(p, x):
        step = jax.grad(lambda p, part: mean_of(p, part, each))
        return sums_of(p, lambda part: step(p, part), parts(x), lambda g: g / STEPS)

    return gradient


def runs(x):
    return x.reshape(STEPS, -1, WIDTH)


def cut_out(p, x):
    def step(i, total):
        part = lax.dynamic_slice_in_dim(x, i * (B // STEPS), B // STEPS)
        return jax.tree.map(lambda t, g: t + g / STEPS, total, jax.grad(mean_of)(p, part))

    return lax.fori_loop(0, STEPS, step, jax.tree.map(jnp.zeros_like, p))


def inside_the_loss(p, x):
    return jax.grad(lambda p: jnp.mean(lax.map(lambda part: mean_of(p, part), runs(x))))(p)


def one_by_one(p, x):
    return sums_of(p, lambda row: jax.grad(one)(p, row), x, lambda g: g / B)


CASES = {
    "runs": over(runs),
    "strides": over(lambda x: x.reshape(-1, STEPS, WIDTH).swapaxes(0, 1)),
    "recurrent": over(runs, recurrent),
    "cut out": cut_out,
    "inside the loss": inside_the_loss,
    "one by one": one_by_one,
}
MOMENTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("squares", "variance")]
ASKED = {"measures": STATISTICS, "weights": REWEIGHTING, "spreads": SPREADS | NOISE}


@pytest.mark.parametrize("name", CASES)
def test_every_measure_of_every_form(name, steps_taken):
    assert_exact(name, "measures", "auto")
    assert len(steps_taken) == 1


@pytest.mark.parametrize(("name", "asked"), covering(list(CASES), ["weights", "spreads"]))
def test_weights_and_spreads_of_every_form(name, asked, steps_taken):
    assert_exact(name, asked, "auto")
    assert len(steps_taken) == 1


def assert_exact(name, asked, strategy):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=ASKED[asked], strategy=strategy)
    gradient, found = f(PARAMS, X)
    own = examples(recurrent if name == "recurrent" else one)
    assert_right({"plain": gradient}, {"plain": jax.tree.map(lambda x: x.mean(0), own)})
    assert_right(found, expected(own))


def temporaries(f, *args):
    compiled = jax.jit(f).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", ["norms", "clipped", *MOMENTS])
def test_temporaries_do_not_grow_with_the_number_of_microbatches(name):
    width, statistic = 64, {**STATISTICS, **REWEIGHTING, **SPREADS}[name]
    p = {"w": draw(0, LAYERS, width, width), "v": draw(1, width)}

    def taken(steps):
        def gradient(p, x):
            step = jax.grad(mean_of)
            parts = x.reshape(steps, 2, width)
            return sums_of(p, lambda part: step(p, part), parts, lambda g: g / steps)

        f = hs.rewrite(gradient, batch_argnums=1, statistics=statistic)
        return temporaries(f, p, draw(3, 2 * steps, width))

    rows = 2 * 12 * 4 * 8  # of float32: norms and weights of 12 more examples, some copies of them
    assert taken(8) <= taken(2) + rows
