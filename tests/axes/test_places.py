"""Places: where examples lie is asked of each value, and not only found by unification."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def turned(y):
    """[B * R], B = 2, with the rows of the examples by turns."""
    return y.reshape(2, 3).T.reshape(6)


def along_the_features(w, x, y):
    return jnp.mean(jnp.tanh(w * x[0, :3]) * y)


def along_the_features_by_number(w, x, y):
    return jnp.mean(jnp.tanh(w * lax.dynamic_index_in_dim(x, 0, 0, False)[:3]) * y)


def along_the_features_of_a_step(w, x, y):
    def step(h, t):
        return jnp.tanh(h * w + x[1, t] * y[t]), None

    return jnp.mean(lax.scan(step, jnp.zeros(()), jnp.arange(3))[0] * y)


def rows_of_one_as_rows_of_all(w, x, y):
    return jnp.mean(jnp.tanh(w * x[:2]) * y.reshape(2, 2).sum(1))


def beside_each_other(w, x, y):
    return jnp.mean(jnp.prod(jnp.tanh(w * jnp.stack([x, turned(y)], 1)), 1))


def written_over(w, x, y):
    both = lax.dynamic_update_slice(jnp.stack([x, x], 1), turned(y)[:, None], (0, 0))
    return jnp.mean(jnp.prod(jnp.tanh(w * both), 1))


def one_or_the_other(w, x, y):
    chosen = lax.cond(w > -5, lambda: x, lambda: turned(y))
    return jnp.mean(jnp.tanh(w * turned(y)) * chosen)


def handed_on_in_place(w, x, y):
    carry, _ = lax.scan(lambda c, _: (turned(y), None), x, None, length=2)
    return jnp.mean(carry * jnp.tanh(w * x))


def handed_on_as_both(w, x, y):
    both = lax.fori_loop(0, 2, lambda i, c: (jnp.sin(c[0]),) * 2, (x, turned(y)))
    return jnp.mean(both[1] * jnp.tanh(w * turned(y)))


def behind_a_barrier(w, x, y):
    def step(carry, _):
        return lax.optimization_barrier(turned(y)), None

    return jnp.mean(lax.scan(step, x, None, length=2)[0] * jnp.tanh(w * x))


def data_that_an_example_chooses(w, x):
    rising = jnp.cumsum(x)

    def one(t):
        return jnp.tanh(w * x[t]) * lax.cond(x[t] > 0, lambda: rising[t], lambda: 0.0)

    return jnp.mean(lax.map(one, jnp.arange(4)))


X, Y = drawn(6), drawn(6, seed=1)
MEETING = [
    (along_the_features, (drawn(3, 3), drawn(3, seed=1)), 1),
    (along_the_features, (drawn(3, 4), drawn(3, seed=1)), 1),
    (along_the_features_by_number, (drawn(3, 4), drawn(3, seed=1)), 1),
    (along_the_features_of_a_step, (drawn(3, 3), drawn(3, seed=1)), 1),
    (rows_of_one_as_rows_of_all, (drawn(4), drawn(4, seed=1)), 2),
    *((loss, (X, Y), 3) for loss in (beside_each_other, written_over, one_or_the_other)),
    *((loss, (X, Y), 3) for loss in (handed_on_in_place, handed_on_as_both, behind_a_barrier)),
    (data_that_an_example_chooses, (drawn(4),), 1),
]


def changed(batch, examples, rows):
    """The batch, with other numbers for some examples."""
    found = [np.array(x) for x in batch]
    for number, example in [(k, e) for k in range(len(found)) for e in examples]:
        own = slice(example * rows, (example + 1) * rows)
        found[number][own] = drawn(*found[number].shape, seed=7 + number)[own]
    return found


@pytest.mark.parametrize(("loss", "batch", "rows"), MEETING)
def test_examples_that_meet_are_refused(loss, batch, rows):
    """They do meet: of some two of them the second difference does not vanish."""
    gradient = jax.jit(jax.grad(loss))
    mixed = 0.0
    for one, other in combinations(range(len(batch[0]) // rows), 2):
        both = [(), (one,), (other,), (one, other)]
        a, b, c, d = (gradient(0.7, *changed(batch, some, rows)) for some in both)
        mixed = max(mixed, abs(float(a - b - c + d)))
    assert mixed > 1e-3
    axes = tuple(range(1, 1 + len(batch)))
    f = hs.grad(loss, batch_argnums=axes, statistics=hs.norms(), rows_per_example=rows)
    with pytest.raises(hs.Refusal):
        f(0.7, *batch)
