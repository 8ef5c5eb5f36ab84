"""Data of the batch where examples are written out: each must meet the same, in whatever way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

from .verdicts import reasons

B = 4
W = np.ones((3, 2), np.float32)
X = np.sin(np.arange(12, dtype=np.float32)).reshape(B, 3)
Y = np.float32([0.3, -1, 2, 0.1])


def output(w, x):
    return jnp.tanh(x @ w).sum()


def zero(x):
    return 0.0


def ranks(y):
    return jnp.argsort(jnp.argsort(y))


def repeated(number, x):
    return lax.fori_loop(0, number, lambda _, x: jnp.tanh(x), x)


# How an example uses a number, as a predicate, an index, a count of steps.
USES = {
    "predicate": lambda w, x, n: lax.cond(n < 2, lambda x: output(w, x), zero, x),
    "branch": lambda w, x, n: lax.switch(n % 2, [lambda x: output(w, x), zero], x),
    "index": lambda w, x, n: x[n % 3] * output(w, x),
    "trips": lambda w, x, n: output(w, repeated(n, x)),
    "factor": lambda w, x, n: output(w, x) * n,
}


def written_out(use, number):
    def loss(w, x, y):
        return sum(use(w, x[i], number(y, i)) for i in range(B))

    return loss


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_place_of_its_own_in_data_of_all_is_refused(use):
    loss = written_out(use, lambda y, i: ranks(y)[i])
    assert any(reasons(jax.grad(loss), W, X, Y, batch=(1, 2)))


def test_data_of_one_half_is_no_constant_of_the_other():
    def loss(w, x, y):
        place = jnp.argmax(y[2:])
        return jnp.sum(x[:2, place] * output(w, x[:2])) + output(w, x[2:])

    assert any(reasons(jax.grad(loss), W, X, Y, batch=(1, 2)))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_the_same_for_all_is_a_constant(use):
    def loss(w, x, y):
        number = jnp.argmax(y) % 3
        return sum(use(w, x[i], number) for i in range(B)) / B

    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.per_example())
    one = jax.grad(lambda w, x: use(w, x, jnp.argmax(Y) % 3))
    np.testing.assert_allclose(f(W, X, Y)[1], [one(W, x) for x in X], rtol=1e-5)
