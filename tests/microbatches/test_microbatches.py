"""Gradients that a loop adds up over microbatches: statistics in its steps, in no more memory.

The references are the gradients of one example at a time, in float64.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.microbatches.microbatch_statistics import (
    FLAGS,
    LAYERS,
    NOISE,
    PARAMS,
    REWEIGHTING,
    SPREADS,
    STATISTICS,
    TOLERANCE,
    WEIGHTS,
    WIDTH,
    B,
    X,
    along,
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


@pytest.mark.parametrize("name", ["runs", "strides", "one by one"])
def test_padding_counts_nowhere(name, steps_taken):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=STATISTICS, is_real=FLAGS)
    own = jax.tree.map(lambda g: g * FLAGS.sum() / B, examples())
    assert_right(f(PARAMS, X)[1], expected(own, FLAGS))
    assert len(steps_taken) == 1


def weighted(p, x, weights, each=one):
    return jnp.sum(jax.vmap(each, (None, 0))(p, x) * weights)


def by_weights(p, x, weights):
    """The weights' sum is known only when all microbatches have been seen."""
    zeros = jax.tree.map(jnp.zeros_like, p), jnp.zeros(())

    def step(state, part):
        loss, g = jax.value_and_grad(weighted)(p, *part)
        total, count = state
        return (jax.tree.map(jnp.add, total, g), count + part[1].sum()), loss

    (total, count), losses = lax.scan(step, zeros, (runs(x), weights.reshape(STEPS, -1)))
    return jax.tree.map(lambda g: g / count, total), losses.sum() / count


@pytest.mark.parametrize("name", ["squares", "norms", "cosines", "products"])
def test_weights_are_added_up_before(name, steps_taken):
    f = hs.rewrite(
        by_weights,
        batch_argnums=(1, 2),
        statistics={name: {**STATISTICS, **REWEIGHTING}[name]},
        gradients=lambda outputs: outputs[0],
    )
    own = jax.tree.map(
        lambda g: g * (WEIGHTS * B / WEIGHTS.sum()).reshape(-1, *[1] * (g.ndim - 1)), examples()
    )
    assert_right(f(PARAMS, X, WEIGHTS)[1], expected(own))
    assert len(steps_taken) == 1


def decayed(p, part):
    return mean_of(p, part) + 0.1 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))


def added_up(step, behind=lambda g, p: g):
    def gradient(p, x):
        total = sums_of(p, lambda part: step(p, part), runs(x), lambda g: g / STEPS)
        return jax.tree.map(behind, total, p)

    return gradient


def from_the_parameters(p, x):
    """The sum does not start at zero."""
    step = jax.grad(mean_of)

    def add(total, part):
        return jax.tree.map(lambda t, g: t + g / STEPS, total, step(p, part)), None

    return lax.scan(add, jax.tree.map(lambda w: 0.3 * w, p), runs(x))[0]


def twice(p, x):
    """Every example is in two steps."""
    return added_up(jax.grad(mean_of))(p, jnp.concatenate([x, x]).reshape(STEPS, -1, WIDTH))


def with_momentum(p, x):
    """What a step adds rests on the examples of all steps before."""

    def step(state, part):
        momentum, total = state
        g = jax.grad(mean_of)(p, part)
        momentum = jax.tree.map(lambda m, g: m / 2 + g / STEPS, momentum, g)
        return (momentum, jax.tree.map(jnp.add, total, momentum)), None

    zeros = jax.tree.map(jnp.zeros_like, p)
    return lax.scan(step, (zeros, zeros), runs(x))[0][1]


def again_by(orders):
    """The examples of a step, and others, or the same in an order that differs by step."""

    def gradient(p, x):
        def loss(p, i):
            again = mean_of(p, x[jnp.array(orders)[i]])
            return (mean_of(p, lax.dynamic_slice_in_dim(x, 2 * i, 2)) + again) / 2

        return sums_of(p, lambda i: jax.grad(loss)(p, i), jnp.arange(STEPS), lambda g: g / STEPS)

    return gradient


def head_behind(p, x):
    """The layers of microbatches, and what comes behind of the whole batch."""

    def layers(p, part):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), part, p["w"])[0]

    def loss(p):
        h = lax.map(lambda part: layers(p, part), runs(x)).reshape(B, WIDTH)
        return jnp.mean(jnp.sum((h * p["v"]) ** 2, -1))

    return jax.grad(loss)(p)


def whole_batch_behind(p, x):
    return jax.tree.map(jnp.add, over(runs)(p, x), jax.grad(mean_of)(p, x))


EVEN = np.ones(B)
OTHERS = {
    "a head behind": (head_behind, EVEN, 0.0),
    "the whole batch behind": (whole_batch_behind, EVEN * 2, 0.0),
    "decay in each step": (added_up(jax.grad(decayed)), EVEN, 0.2),
    "from the parameters": (from_the_parameters, EVEN, 0.3),
    "momentum": (with_momentum, np.repeat([1.75, 1.5, 1.0], 2), 0.0),
}


@pytest.mark.parametrize(("gradient", "scale", "decay"), OTHERS.values(), ids=OTHERS.keys())
def test_what_a_step_does_not_know_is_left_to_lifting(gradient, scale, decay, steps_taken):
    statistics = {"squares": STATISTICS["squares"], "clipped": REWEIGHTING["clipped"]}
    found = hs.rewrite(gradient, batch_argnums=1, statistics=statistics)(PARAMS, X)[1]
    decays = decay if isinstance(decay, dict) else dict.fromkeys(PARAMS, decay)
    own = jax.tree.map(lambda g, w, d: g * along(scale, g) + d * w, examples(), PARAMS, decays)
    assert_right(found, expected(own))
    assert not steps_taken


def from_an_example(p, x):
    """The sum starts at what the first example has."""
    step = jax.grad(mean_of)

    def add(total, part):
        return jax.tree.map(lambda t, g: t + g / STEPS, total, step(p, part)), None

    start = jax.tree.map(lambda w: jnp.full(w.shape, x[0].sum() / B), p)
    return lax.scan(add, start, runs(x))[0]


MOVED = {
    "permuted": over(lambda x: runs(x[jnp.array([4, 1, 0, 5, 3, 2])])),
    "backwards": over(lambda x: runs(x)[::-1]),
    "twice": twice,
    "some twice and some never": over(lambda x: runs(x[jnp.array([0, 1, 0, 1, 2, 3])])),
    "in another order": again_by([[0, 1], [3, 2], [4, 5]]),
    "with the next step's": again_by([[2, 3], [4, 5], [0, 1]]),
    "from an example": from_an_example,
}


@pytest.mark.parametrize("gradient", MOVED.values(), ids=MOVED)
def test_examples_that_are_moved_are_refused(gradient):
    with pytest.raises(hs.Refusal) as refused:
        hs.rewrite(gradient, batch_argnums=1, statistics=hs.norms())(PARAMS, X)
    assert "/tests/microbatches/" in refused.value.where
    assert refused.value.help


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


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_a_step_contracts_its_gradient_once(strategy):
    """Where it makes those of its examples, their mean is what is added up."""
    f = hs.rewrite(over(runs), batch_argnums=1, statistics=hs.mean_of(jnp.cos), strategy=strategy)
    kept = hs.rewrite(
        over(runs),
        batch_argnums=1,
        statistics=hs.mean_of(jnp.cos),
        strategy=strategy,
        reuse_gradient=False,
    )

    def contractions(g):
        text = jax.jit(g).lower(PARAMS, X).compile().as_text()
        return len(re.findall(r"= \S+ dot\(", text))

    assert contractions(f) < contractions(kept)
    gradient, _ = f(PARAMS, X)
    for got, want in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(kept(PARAMS, X)[0]), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * np.abs(want).max())
