"""Row b along the example axis is example b's, whoever made it, in steps and groups of any kind."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D, F = 6, 3, 2
RNG = np.random.default_rng(0)
PARAMS = {
    "w": jnp.asarray(RNG.normal(size=(D, F)), jnp.float32),
    "b": jnp.asarray(RNG.normal(size=F), jnp.float32),
    "c": jnp.float32(0.7),
}
X = jnp.asarray(RNG.normal(size=(B, D)), jnp.float32)
MASK = jnp.asarray(RNG.integers(0, 2, (B, F)), jnp.float32)
WEIGHTS = jnp.linspace(0.5, 2.0, B)
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def out(p, x):
    """[..., F]: linear in b, so that its gradient rests on no example."""
    return jnp.tanh(x @ p["w"]) + p["b"]


def penalty(p):
    return 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values())


def dropped(p, x):
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (B, F))
    return jnp.sum(jnp.where(kept, out(p, x), 0.0))


def one_dropped(p, row, b):
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (B, F))
    return jnp.sum(jnp.where(kept[b], out(p, row), 0.0))


def counted(p, x):
    return lax.fori_loop(0, B, lambda i, total: total + (i + 1.0) * jnp.sum(out(p, x[i])), 0.0)


def halves(p, x):
    """A term of the first two alone."""
    return jnp.sum(out(p, x[:2]) * p["c"]) + 3 * jnp.sum(out(p, x[2:]))


# A sum over the batch, and example b's own term of it.
SUMS = {
    "dropout": (dropped, one_dropped),
    "a mask": (
        lambda p, x: jnp.sum(MASK * out(p, x)),
        lambda p, row, b: jnp.sum(MASK[b] * out(p, row)),
    ),
    "weights": (
        lambda p, x: WEIGHTS @ out(p, x).sum(1),
        lambda p, row, b: WEIGHTS[b] * out(p, row).sum(),
    ),
    "numbers of steps": (counted, lambda p, row, b: (b + 1.0) * jnp.sum(out(p, row))),
    "other terms of a part": (
        halves,
        lambda p, row, b: jnp.where(b < 2, p["c"], 3.0) * jnp.sum(out(p, row)),
    ),
}


def own_gradients(term):
    """[B, *parameter]: of each example's own term."""
    return jax.vmap(jax.grad(term), (None, 0, 0))(PARAMS, X, jnp.arange(B))


@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("name", SUMS)
def test_what_lies_at_a_place_is_its_examples(name, strategy):
    total, term = SUMS[name]

    def loss(p, x):
        return total(p, x) / B + penalty(p)

    asked = {"each": hs.per_example(), "square": hs.second_moment()}
    found = hs.grad(loss, batch_argnums=1, statistics=asked, strategy=strategy)(PARAMS, X)[1]
    own = own_gradients(lambda p, row, b: term(p, row, b) + penalty(p))
    jax.tree.map(close, found["each"], own)
    jax.tree.map(lambda s, each: close(s, (each**2).mean(0)), found["square"], own)


def penalised(p, x):
    return jnp.mean(out(p, x)) + penalty(p)


def added(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def times(tree, number):
    return jax.tree.map(lambda leaf: leaf * number, tree)


def of_parts(p, x):
    return added(jax.grad(penalised)(p, x[:2]), jax.grad(penalised)(p, x[2:]))


def of_weighted_parts(p, x):
    one, two = jax.grad(penalised)(p, x[:3]), jax.grad(penalised)(p, x[3:])
    return added(times(one, 0.3), times(two, 0.7))


def of_weighted_steps(p, x):
    def step(total, rows):
        x, weight = rows
        return added(total, times(jax.grad(penalised)(p, x), weight)), None

    zeros = jax.tree.map(jnp.zeros_like, p)
    return lax.scan(step, zeros, (x.reshape(3, 2, D), jnp.arange(1.0, 4.0)))[0]


def fading(p, x):
    """What came before counts half at each step."""

    def step(total, rows):
        return added(times(total, 0.5), jax.grad(penalised)(p, rows)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, p), x.reshape(3, 2, D))[0]


# Gradients of microbatches, each example's weight, and how often the penalty is in it.
ADDED = {
    "parts of two sizes": (of_parts, [1 / 2] * 2 + [1 / 4] * 4, 2.0),
    "weighted parts": (of_weighted_parts, [0.1] * 3 + [0.7 / 3] * 3, 1.0),
    "weighted steps": (of_weighted_steps, [0.5, 0.5, 1.0, 1.0, 1.5, 1.5], 6.0),
    "fading steps": (fading, [0.125, 0.125, 0.25, 0.25, 0.5, 0.5], 1.75),
}


@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("name", ADDED)
def test_penalties_of_microbatches_are_everybodys(name, strategy):
    made, weights, often = ADDED[name]
    asked = {"each": hs.per_example(), "norms": hs.norms()}
    rewritten = hs.rewrite(made, batch_argnums=1, statistics=asked, strategy=strategy)
    plain, found = rewritten(PARAMS, X)
    weights = B * jnp.asarray(weights)
    own = own_gradients(lambda p, row, b: weights[b] * jnp.mean(out(p, row)) + often * penalty(p))
    jax.tree.map(close, found["each"], own)
    jax.tree.map(lambda g, each: close(g, each.mean(0)), plain, own)
    flat = np.hstack([each.reshape(B, -1) for each in jax.tree.leaves(own)])
    close(found["norms"], np.linalg.norm(flat, axis=1))


B_OF_EXAMPLES = 4
W, X_OF_EXAMPLES = (
    jnp.asarray(np.random.default_rng(i).normal(size=shape), jnp.float32)
    for i, shape in enumerate([(3, 5), (B_OF_EXAMPLES, 3)])
)


def one(w, e):
    return jnp.sum(jnp.tanh(e @ w))


def other(w, e):
    return jnp.sum(jnp.sin(e @ w))


def added_up(beside):
    def loss(w, x):
        def step(total, rows):
            return total + one(w, rows[0]) + other(w, rows[1]), None

        return lax.scan(step, 0.0, (x, beside(x)))[0] / B_OF_EXAMPLES

    return loss


def mapped(beside):
    def each(w, rows):
        return one(w, rows[0]) + other(w, rows[1])

    return lambda w, x: jnp.mean(lax.map(lambda rows: each(w, rows), (x, beside(x))))


def from_both_ends(w, x):
    return (
        lax.fori_loop(
            0,
            B_OF_EXAMPLES,
            lambda i, t: t + one(w, x[i]) + other(w, x[B_OF_EXAMPLES - 1 - i]),
            0.0,
        )
        / B_OF_EXAMPLES
    )


LOSSES = {
    "added up": added_up(lambda x: x),
    "mapped": mapped(lambda x: x),
}
OF_OTHERS = {
    "reversed": added_up(lambda x: x[::-1]),
    "rolled": added_up(lambda x: jnp.roll(x, 1, 0)),
    "reversed, and mapped": mapped(lambda x: x[::-1]),
    "from both ends": from_both_ends,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_an_example_has_all_its_rows(loss):
    own = [jax.grad(lambda w, e=e: one(w, e) + other(w, e))(W) for e in X_OF_EXAMPLES]
    expected = np.stack(own)
    statistics = {"each": hs.per_example(), "norms": hs.norms(), "square": hs.second_moment()}
    gradient, found = hs.grad(loss, statistics=statistics)(W, X_OF_EXAMPLES)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(gradient, expected.mean(0), **close)
    np.testing.assert_allclose(found["each"], expected, **close)
    np.testing.assert_allclose(found["norms"], np.sqrt((expected**2).sum((1, 2))), **close)
    np.testing.assert_allclose(found["square"], (expected**2).mean(0), **close)


@pytest.mark.parametrize("loss", OF_OTHERS.values(), ids=OF_OTHERS)
def test_rows_of_two_examples_in_a_step_are_refused(loss):
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(loss, statistics=hs.norms())(W, X_OF_EXAMPLES)
    assert refused.value.where.startswith(__file__)
    assert refused.value.help


GROUPS, STEPS, D_OF_MICROBATCHES, F_OF_MICROBATCHES = 2, 4, 3, 4
rng = np.random.default_rng(0)
W_OF_MICROBATCHES = jnp.asarray(
    rng.normal(size=(D_OF_MICROBATCHES, F_OF_MICROBATCHES)), jnp.float32
)
X_OF_MICROBATCHES = jnp.asarray(rng.normal(size=(GROUPS * STEPS, D_OF_MICROBATCHES)), jnp.float32)
ASKED = {"each": hs.per_example(), "norms": hs.norms(), "square": hs.second_moment()}


def one_of_microbatches(w, row):
    return jnp.sum(jnp.tanh(row @ w) ** 2)


def of_group(w, rows):
    def step(total, row):
        return total + jax.grad(one_of_microbatches)(w, row), None

    return lax.scan(step, jnp.zeros_like(w), rows)[0] / STEPS


def mean_of_groups(w, x):
    return jax.vmap(of_group, (None, 0))(w, x.reshape(GROUPS, STEPS, D_OF_MICROBATCHES)).mean(0)


def mean_of_turned_groups(w, x):
    return jax.vmap(of_group, (None, 1))(w, x.reshape(STEPS, GROUPS, D_OF_MICROBATCHES)).mean(0)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize("gradient", [mean_of_groups, mean_of_turned_groups])
def test_one_example_of_each_group_a_step(gradient, strategy):
    f = hs.rewrite(gradient, batch_argnums=1, statistics=ASKED, strategy=strategy)
    plain, found = f(W_OF_MICROBATCHES, X_OF_MICROBATCHES)
    each = jax.vmap(jax.grad(one_of_microbatches), (None, 0))(W_OF_MICROBATCHES, X_OF_MICROBATCHES)
    close = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(plain, each.mean(0), **close)
    np.testing.assert_allclose(found["each"], each, **close)
    np.testing.assert_allclose(found["norms"], jnp.linalg.norm(each, axis=(1, 2)), **close)
    np.testing.assert_allclose(found["square"], (each**2).mean(0), **close)


def looked_at(w, x):
    """What was added up so far goes into the next example's gradient."""

    def step(total, row):
        return total + jax.grad(one_of_microbatches)(w + total, row), None

    groups = x.reshape(GROUPS, STEPS, D_OF_MICROBATCHES)
    run = jax.vmap(lambda rows: lax.scan(step, jnp.zeros_like(w), rows)[0])
    return run(groups).mean(0)


def squared_behind(w, x):
    return (
        jax.vmap(of_group, (None, 0))(w, x.reshape(GROUPS, STEPS, D_OF_MICROBATCHES)) ** 2
    ).mean(0)


def scaled_by_its_example(w, x):
    """The sum so far is scaled by each group's own example."""

    def step(total, row):
        return total * row[0] + jax.grad(one_of_microbatches)(w, row), None

    groups = x.reshape(GROUPS, STEPS, D_OF_MICROBATCHES)
    return jax.vmap(lambda rows: lax.scan(step, jnp.zeros_like(w), rows)[0])(groups).mean(0)


@pytest.mark.parametrize("gradient", [looked_at, squared_behind, scaled_by_its_example])
def test_groups_whose_examples_meet_are_refused(gradient):
    with pytest.raises(hs.Refusal):
        hs.rewrite(gradient, batch_argnums=1, statistics=ASKED)(
            W_OF_MICROBATCHES, X_OF_MICROBATCHES
        )
