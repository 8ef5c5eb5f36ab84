"""The batch's data beside an example's own: a constant for all is listed, an own place is refused.

A loop over the examples gets what the same program without a loop gets.

This folder alone tests what is refused, with which words, and what near to it is not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B = 4
W, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(3, 5), (B, 3)])
)
ONES = jnp.ones(3)


def one(w, e):
    return jnp.sum(jnp.tanh(e @ w))


def mean_of(w, rows):
    return jnp.mean(jax.vmap(one, (None, 0))(w, rows))


def scanned(start, step):
    """The mean of what each step makes of its state and its example."""
    return lambda w, x: jnp.mean(lax.scan(lambda s, e: step(w, s, e), start, x)[1])


def microbatched(start, step):
    return lambda w, x: jnp.mean(
        lax.scan(lambda s, e: step(w, s, e), start, x.reshape(2, 2, -1))[1]
    )


def mapped(each, made):
    """Each example beside its place of what is made of all."""
    return lambda w, x: jnp.mean(lax.map(lambda xm: each(w, *xm), (x, made(x))))


def beside(each, made):
    """Each example beside one value made of all."""

    def loss(w, x):
        constant = made(x)
        return jnp.mean(lax.map(lambda e: each(w, e, constant), x))

    return loss


def product(w, e, m):
    return one(w, e * m)


def added_up(w, x):
    def step(state, e):
        return (state[0] + e, state[1] + one(w, e * state[0])), None

    return lax.scan(step, (ONES, 0.0), x)[0][1] / B


def stacked_then_met(w, x):
    sums = lax.scan(lambda s, e: (s + e, s + e), ONES, x)[1]
    return mean_of(w, x * sums)


def layered(w, s, e):
    return s + e, one(w, lax.scan(lambda h, _: (jnp.tanh(h * s), None), e, None, length=2)[0])


def repeated(w, s, e):
    times = lax.fori_loop(0, s, lambda _, h: 1.1 * h, lax.stop_gradient(e))
    return s + (e[0] > 0), one(w, times)


def mixed_up(w, x):
    """Mixup before an activation: rows of data no example owns, beside each its own target."""
    other = jnp.concatenate([x[:1], x[:0:-1]])
    return jnp.mean((jnp.tanh(x + other) @ w - x[:, :1]) ** 2)


def mixed_labels(mix):
    """Mixup of inputs and of labels: the loss is linear in what each example adds to the labels."""

    def loss(w, x):
        predicted = jax.nn.log_softmax(jnp.cos(mix(x)) @ w[:, :3])
        return -jnp.mean(jnp.sum(mix(x) * predicted, 1))

    return loss


MIXING = jnp.eye(B) + jnp.asarray(np.eye(B)[[0, 3, 2, 1]], jnp.float32)


def keyed(w, key, e):
    return jax.random.fold_in(key, jnp.int32(100 * e[0])), one(w, e * jax.random.uniform(key))


def chosen_at_another_place_each_step(w, x):
    def step(t, h):
        return jnp.tanh(h * jnp.where(jnp.arange(B)[:, None] == t, x, x.sum(0)))

    return mean_of(w, lax.fori_loop(0, 2, step, jnp.ones_like(x)))


def chosen_at_some_examples_steps(w, x):
    rows = x, jnp.arange(B)
    return jnp.mean(lax.map(lambda r: one(w, jnp.where(r[1] < 2, r[0], x.sum(0))), rows))


REARRANGED = {
    "a cumulative sum of one number": scanned(1.0, lambda w, s, e: (s + e.sum(), one(w, e * s))),
    "and in the state": added_up,
    "a maximum": scanned(1.0, lambda w, s, e: (jnp.maximum(s, e.max()), one(w, e * s))),
    "a moving average": scanned(ONES, lambda w, s, e: (0.9 * s + 0.1 * e, one(w, e / (1 + s**2)))),
    "an index": scanned(0, lambda w, s, e: ((s + (e[0] > 0)) % 3, one(w, e[s] * ONES))),
    "a key": scanned(jax.random.key(0), keyed),
    "the example before": scanned(ONES, lambda w, s, e: (e, one(w, e * s))),
    "two before": scanned((ONES, ONES), lambda w, s, e: ((e, s[0]), one(w, e * s[1]))),
    "beside a linear loss": scanned(ONES, lambda w, s, e: (s + e, jnp.sum(e @ (w * s[:, None])))),
    "in a branch": scanned(
        ONES, lambda w, s, e: (s + e, lax.cond(s[0] > 0, lambda: one(w, e), lambda: one(w, 2 * e)))
    ),
    "in a loop within": scanned(ONES, layered),
    "as the length of a loop within": scanned(0, repeated),
    "over microbatches": microbatched(ONES, lambda w, s, e: (s + e.sum(0), mean_of(w, e * s))),
    "of the microbatch alone": microbatched(0.0, lambda w, s, e: (s, mean_of(w, e / e.sum(0)))),
    "stacked, then met": stacked_then_met,
    "cumulated, then mapped": mapped(product, lambda x: jnp.cumsum(x.sum(1))),
    "reversed": mapped(product, lambda x: x[::-1]),
    "reversed without a loop": lambda w, x: mean_of(w, x * x[::-1]),
    "chosen at another's at each step": chosen_at_another_place_each_step,
    "chosen at some examples' steps": chosen_at_some_examples_steps,
    "mixed with another's": mixed_up,
    "and its label too": mixed_labels(lambda x: 0.6 * x + 0.4 * x[::-1]),
    "by a matrix": mixed_labels(lambda x: MIXING @ x),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("loss", REARRANGED.values(), ids=REARRANGED.keys())
def test_what_each_example_meets_elsewhere_is_refused(loss):
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(loss, statistics=hs.second_moment())(W, X)
    assert "test_batch_constants" in str(refused.value.where)


@pytest.mark.parametrize("added", [lambda a, b: a + b, lambda a, b: b + a])
def test_data_beside_a_sum_over_positions_is_data(added):
    """Weights by position, whose sum belongs to positions, and a running sum of data."""
    weights = jnp.arange(1.0, B + 1)

    def loss(w, x):
        own = weights * jnp.abs(w).sum()
        scale = lax.stop_gradient(added(own.sum(), jnp.cumsum(x.sum(1))))
        return jnp.mean(lax.stop_gradient(own) * (x @ w).sum(1)) + mean_of(w, x * scale[:, None])

    with pytest.raises(hs.Refusal, match=r"along the example axis|data of the whole batch"):
        hs.grad(loss, statistics=hs.second_moment())(W, X)


def test_data_beside_positions_is_data():
    """A running sum of numbers of the steps is none, and becomes data where data is added to it."""

    def step(w, s, e):
        return (0.9 * s[0], s[1] + s[0] + e[0]), one(w, e * (s[0] + s[1]))

    # In the loop of some releases of JAX it is met where it is stacked for the way back.
    with pytest.raises(hs.Refusal, match=r"data of the whole batch|along the example axis"):
        hs.grad(scanned((1.0, 0.0), step), statistics=hs.second_moment())(W, X)


def total_of_a_loop(w, x):
    total = lax.scan(lambda s, e: (s + e, None), ONES, x)[0]
    return jnp.mean(lax.map(lambda e: one(w, e * total), x))


def microbatches_beside(w, x, constant):
    return jnp.mean(lax.map(lambda rows: mean_of(w, rows * constant), x.reshape(2, 2, -1)))


def total_of_the_same_loop(w, x):
    def step(state, e):
        return (state[0] + one(w, e), state[1] + e[0] ** 2), None

    losses, weights = lax.scan(step, (0.0, 0.0), x)[0]
    return losses / weights


CONSTANT = {
    "a mean in a map": (
        beside(lambda w, e, m: one(w, e - m), lambda x: jnp.mean(x, 0)),
        lambda w, x, m: one(w, x - jnp.mean(m, 0)),
    ),
    "a maximum in a map": (beside(product, jnp.max), lambda w, x, m: one(w, x * jnp.max(m))),
    "a mean laid out over the steps": (
        mapped(product, lambda x: jnp.broadcast_to(jnp.mean(x, 0), x.shape)),
        lambda w, x, m: one(w, x * jnp.mean(m, 0)),
    ),
    "a mean over microbatches": (
        lambda w, x: microbatches_beside(w, x, jnp.mean(x, 0)),
        lambda w, x, m: one(w, x * jnp.mean(m, 0)),
    ),
    "a deviation that scales the parameters": (
        lambda w, x: mean_of(w * jnp.std(x, 0)[:, None], x),
        lambda w, x, m: one(w * jnp.std(m, 0)[:, None], x),
    ),
    "a loop's total in the next": (
        total_of_a_loop,
        lambda w, x, m: one(w, x * (1 + jnp.sum(m, 0))),
    ),
    "a loop's total behind it": (
        total_of_the_same_loop,
        lambda w, x, m: B * one(w, x) / jnp.sum(m[:, 0] ** 2),
    ),
}


@pytest.mark.first(2)
@pytest.mark.parametrize(("loss", "each"), CONSTANT.values(), ids=CONSTANT.keys())
def test_what_is_one_for_all_examples_is_a_listed_constant(loss, each):
    f = hs.grad(loss, statistics={"all": hs.per_example(), "squares": hs.second_moment()})
    gradient, found = f(W, X)
    expected = jax.vmap(jax.grad(each), (None, 0, None))(W, X, X)
    np.testing.assert_allclose(found["all"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["squares"], (expected**2).mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected.mean(0), rtol=1e-5, atol=1e-6)
    assert "taken as constant" in str(hs.explain(f, W, X))
    with pytest.raises(hs.Refusal, match="bounds each example's influence"):
        hs.grad(loss, statistics=hs.clipped_mean(0.1))(W, X)


def test_what_a_branch_on_data_returns_is_data():
    def loss(w, x):
        return mean_of(w, x) + lax.cond(x.sum() > 0, lambda: 1.0, lambda: 2.0) * jnp.sum(w**2)

    with pytest.raises(hs.Refusal, match="sum of data over the batch"):
        hs.grad(loss, statistics=hs.second_moment())(W, X)


def halved_until_small(x, added, start):
    """A sum over as many rounds as the data of the batch asks for."""

    def again(state):
        return jnp.any(jnp.abs(state[0]) > 0.3)

    def halve(state):
        rows, total = state
        return jnp.where(jnp.abs(rows) > 0.3, rows / 2, rows), total + added

    return lax.while_loop(again, halve, (x, start))[1]


def chosen_by_data(x, one, other):
    return lax.cond(x.sum() > 0, lambda: one, lambda: other)


DECIDED = {
    "a constant in each round": lambda w, x: halved_until_small(
        x, jnp.tanh(x @ w).sum(0) + w[0], jnp.zeros(5)
    ),
    "a constant to start with": lambda w, x: halved_until_small(
        x, jnp.tanh(x @ w).sum(0), w[0] + jnp.tanh(x @ w).sum(0)
    ),
    "a constant in one branch": lambda w, x: chosen_by_data(
        x, jnp.tanh(x @ w).sum(0) + w[0], jnp.tanh(x @ w).sum(0)
    ),
}


@pytest.mark.parametrize("gradient", DECIDED.values(), ids=DECIDED.keys())
def test_a_constant_that_data_decides_on_is_no_term(gradient):
    f = hs.rewrite(gradient, batch_argnums=1, statistics=hs.per_example())
    with pytest.raises(hs.Refusal, match="is a term of the gradient"):
        f(W, X)
