"""Loops of which each step takes several examples' rows one by one: its own is not all it adds.

An example's gradient is that of all its rows, in whatever steps these are taken. The references are
gradients of one example's loss at a time.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B = 4
W, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=shape), jnp.float32)
    for i, shape in enumerate([(3, 5), (B, 3)])
)


def one(w, e):
    return jnp.sum(jnp.tanh(e @ w))


def other(w, e):
    return jnp.sum(jnp.sin(e @ w))


def added_up(beside):
    def loss(w, x):
        def step(total, rows):
            return total + one(w, rows[0]) + other(w, rows[1]), None

        return lax.scan(step, 0.0, (x, beside(x)))[0] / B

    return loss


def mapped(beside):
    def each(w, rows):
        return one(w, rows[0]) + other(w, rows[1])

    return lambda w, x: jnp.mean(lax.map(lambda rows: each(w, rows), (x, beside(x))))


def from_both_ends(w, x):
    return lax.fori_loop(0, B, lambda i, t: t + one(w, x[i]) + other(w, x[B - 1 - i]), 0.0) / B


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
    own = [jax.grad(lambda w, e=e: one(w, e) + other(w, e))(W) for e in X]
    expected = np.stack(own)
    statistics = {"each": hs.per_example(), "norms": hs.norms(), "square": hs.second_moment()}
    gradient, found = hs.grad(loss, statistics=statistics)(W, X)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(gradient, expected.mean(0), **close)
    np.testing.assert_allclose(found["each"], expected, **close)
    np.testing.assert_allclose(found["norms"], np.sqrt((expected**2).sum((1, 2))), **close)
    np.testing.assert_allclose(found["square"], (expected**2).mean(0), **close)


@pytest.mark.parametrize("loss", OF_OTHERS.values(), ids=OF_OTHERS)
def test_rows_of_two_examples_in_a_step_are_refused(loss):
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(loss, statistics=hs.norms())(W, X)
    assert refused.value.where.startswith(__file__)
    assert refused.value.help
