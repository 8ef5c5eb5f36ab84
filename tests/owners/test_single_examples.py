"""Values of single examples: as states of loops and branches, and beside constants."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D = 4, 3
rng = np.random.default_rng(1)
X = jnp.asarray(rng.normal(size=(B, D)), jnp.float32)
V = jnp.asarray(rng.normal(size=D), jnp.float32)
MASK = jnp.asarray([1.0, 2.0, 0.5, 3.0])


def feature(w, row):
    return jnp.tanh(row * w)


def last_two(w, x):
    return lax.fori_loop(0, B, lambda i, c: (c[1], feature(w, x[i])), (jnp.zeros(D),) * 2)[0]


def sum_unrolled(w, x, unroll):
    def step(total, row):
        return total + feature(w, row), None

    return lax.scan(step, jnp.zeros(D), x, unroll=unroll)[0]


def two_a_step_and_a_constant(w, x):
    def step(total, pair):
        return total + feature(w, pair[0]) + w + feature(w, pair[1]), None

    return lax.scan(step, jnp.zeros(D), x.reshape(B // 2, 2, D))[0]


# Each is made of one example or of all, as states are; zeros add nothing.
STATES = {
    "from the first": lambda w, x: lax.scan(
        lambda c, row: (c + feature(w, row), None), feature(w, x[0]), x[1:]
    )[0],
    "the last": lambda w, x: lax.fori_loop(0, B, lambda i, c: feature(w, x[i]), jnp.zeros(D)),
    "one before the last": last_two,
    "either of two": lambda w, x: lax.cond(
        jnp.abs(w).sum() < 0, lambda: feature(w, x[0]), lambda: feature(w, x[1])
    ),
    "two a step": partial(sum_unrolled, unroll=2),
    "three a step, and one": partial(sum_unrolled, unroll=3),
    "one of all": lambda w, x: lax.switch(
        (jnp.abs(w).sum() > 0) * 2, [lambda i=i: feature(w, x[i]) for i in range(B)]
    ),
}


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize("name", STATES)
def test_states_that_single_examples_go_into(name, strategy):
    gradient = STATES[name]
    asked = {"each": hs.per_example(), "square": hs.second_moment()}
    f = hs.rewrite(gradient, batch_argnums=1, statistics=asked, strategy=strategy)
    plain, found = f(V, X)
    alone = [gradient(V, jnp.where(jnp.arange(B)[:, None] == b, X, 0)) for b in range(B)]
    expected = B * np.stack(alone)
    np.testing.assert_allclose(plain, gradient(V, X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["each"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["square"], (expected**2).mean(0), rtol=1e-5, atol=1e-6)


PUT = lax.ScatterDimensionNumbers((0, 1), (), (0,))


def behind_a_dropped_window(w, x):
    """The window does not fit behind row 3, so that nothing is put there."""
    h = feature(w, x)
    behind = lax.scatter(h, jnp.asarray([3]), jnp.ones((2, D)), PUT, mode="drop")
    return (h * behind[3]).sum(0)


# A constant, k or a part of the penalty, that some examples bring along and others do not.
UNEVEN = {
    "some rows with a constant": lambda w, x: jnp.concatenate([x[:2] * w + 1.0, x[2:] * w]).sum(0),
    "a decay instead of an example": lambda w, x: (
        lax.cond(w[0] > 9, lambda: feature(w, x[0]), lambda: 2 * w) + feature(w, x).sum(0)
    ),
    "the last and a constant": lambda w, x: lax.fori_loop(
        0, B, lambda i, c: x[i] * w + 1.0, jnp.zeros(D)
    ),
    "the first and a constant": lambda w, x: lax.scan(
        lambda c, row: (c + feature(w, row), None), feature(w, x[0]) + 1.0, x[1:]
    )[0],
    "two a step and a constant": two_a_step_and_a_constant,
    "from a constant to an example": lambda w, x: lax.fori_loop(
        0, B, lambda i, c: jnp.where(i == 1, x[2] * w, c), w**2 + 1.0
    ),
}


@pytest.mark.parametrize("gradient", UNEVEN.values(), ids=UNEVEN)
def test_constants_of_some_examples_are_refused(gradient):
    with pytest.raises(hs.Refusal, match="constant"):
        hs.rewrite(gradient, batch_argnums=1, statistics=hs.norms())(V, X)


def test_what_a_dropped_window_leaves_meets_the_examples():
    with pytest.raises(hs.Refusal, match="meets others"):
        hs.rewrite(behind_a_dropped_window, batch_argnums=1, statistics=hs.norms())(V, X)


def masked(p, x):
    return sum(MASK[i] * (x[i] @ p["w"] + p["b"]) for i in range(B)) / B


def stacked(p, x):
    return jnp.mean(MASK * jnp.stack([x[i] @ p["w"] + p["b"] for i in range(B)]))


def weighted(p, x):
    return sum((i + 1.0) * (x[i] @ p["w"] + p["b"]) for i in range(B)) / B


def in_halves(p, x):
    first, second = ((rows @ p["w"] + p["b"]).sum() for rows in (x[:2], x[2:]))
    return (first + 3 * second) / B


def ragged(p, x):
    rows = [jnp.concatenate([(x[b] * p["w"])[: b + 1], jnp.repeat(p["b"], D)]) for b in range(2)]
    return jnp.mean(jnp.stack([row[:D].sum() for row in rows])) + jnp.mean(x @ p["w"])


def of_lengths(p, x):
    """Example b has b + 1 rows, and so much of b."""
    return sum((x[b, : b % D + 1] * p["w"][0] + p["b"]).sum() for b in range(B)) / B


@pytest.mark.parametrize("loss", [masked, stacked, weighted, in_halves, ragged, of_lengths])
def test_constants_that_meet_some_examples_are_no_term_that_all_share(loss):
    params = {"w": V, "b": jnp.asarray(0.3)}
    with pytest.raises(hs.Refusal, match="taken apart") as refused:
        hs.grad(loss, statistics=hs.norms())(params, X)
    assert refused.value.where.startswith(__file__)
    assert "['b']" in refused.value.output


def test_the_same_constants_may_scale_what_examples_bring():
    def loss(w, x):
        return masked({"w": w, "b": 0.3}, x)

    each = hs.grad(loss, statistics=hs.per_example())(V, X)[1]
    np.testing.assert_allclose(each, MASK[:, None] * X, rtol=1e-6)


def decayed_one_by_one(w, x):
    return sum(jnp.tanh(x[b] @ w).sum() + jnp.sum(w**2) for b in range(B)) / B


@pytest.mark.parametrize("loss", [decayed_one_by_one, masked], ids=["a penalty", "a constant"])
def test_a_python_loop_over_the_examples_is_told_the_way_out(loss):
    params = V if loss is decayed_one_by_one else {"w": V, "b": jnp.asarray(0.3)}
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(loss, statistics=hs.norms())(params, X)
    assert "jax.vmap or jax.lax.map, and not with a Python loop" in refused.value.help


def of_members(p, x):
    """Each half of the batch has a weight and a bias of its own."""
    return jnp.mean(jnp.sum(x.reshape(2, 2, D) * p["w"][:, None], 2) + p["b"][:, None])


def of_numbers(p, x, number):
    return jnp.mean(jnp.sum(x * p["w"][number], 1) + p["b"][number])


def test_rows_that_groups_meet_are_told_to_be_looked_up():
    params, number = {"w": jnp.ones((2, D)), "b": jnp.ones(2)}, jnp.asarray([0, 0, 1, 1])
    with pytest.raises(hs.Refusal, match="is not shown") as refused:
        hs.grad(of_members, statistics=hs.norms())(params, X)
    assert "look up its row" in refused.value.help
    f = hs.grad(of_numbers, batch_argnums=(1, 2), statistics=hs.per_example())
    rows = f(params, X, number)[1]["b"]
    np.testing.assert_array_equal(rows, np.eye(2)[np.asarray(number)])


def test_data_that_each_example_meets_elsewhere_is_refused():
    def loss(w, x):
        return sum(jnp.cumsum(x[:, 0])[i] * jnp.tanh(x[i] @ w) for i in range(B)) / B

    with pytest.raises(hs.Refusal, match="rearranged over the examples"):
        hs.grad(loss, statistics=hs.norms())(V, X)
