"""Terms of single examples, added one by one, each with the same constant or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D, F = 6, 3, 4
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(size=(B, D)), jnp.float32)
PARAMS = {
    "w": jnp.asarray(rng.normal(size=(D, F)), jnp.float32),
    "b": jnp.full(F, 0.3),
    "head": jnp.asarray(rng.normal(size=F), jnp.float32),
    "unused": jnp.ones(2),
}
WEIGHTS = jnp.linspace(0.5, 2.0, B)
ASKED = {"each": hs.per_example(), "square": hs.second_moment()}


def output(p, row):
    """Linear in the head, so that the 1 of tanh's derivative is added to b's gradient as it is."""
    return jnp.tanh(jnp.tanh(row @ p["w"] + p["b"]) + p["b"]) @ p["head"]


def one_by_one(p, x):
    return sum(output(p, x[i]) for i in range(B)) / B


def added_up(unroll):
    def gradient(p, x):
        def step(total, row):
            return jax.tree.map(jnp.add, total, jax.grad(output)(p, row)), None

        total = lax.scan(step, jax.tree.map(jnp.zeros_like, p), x, unroll=unroll)[0]
        return jax.tree.map(lambda g: g / B, total)

    return gradient


EVEN = {
    "a Python loop": jax.grad(one_by_one),
    "two a step": added_up(2),
    "three a step": added_up(3),
    "no loop": added_up(B),
}


@pytest.mark.parametrize("gradient", EVEN.values(), ids=EVEN)
def test_the_same_constant_of_each_is_its_own(gradient):
    found = hs.rewrite(gradient, batch_argnums=1, statistics=ASKED)(PARAMS, X)[1]
    expected = jax.vmap(jax.grad(output), (None, 0))(PARAMS, X)
    for name, each in expected.items():
        close = {"rtol": 1e-4, "atol": 1e-6, "err_msg": name}
        np.testing.assert_allclose(found["each"][name], each, **close)
        np.testing.assert_allclose(found["square"][name], (each**2).mean(0), **close)


def slope(p, row):
    return (1 - jnp.tanh(row @ p["w"] + p["b"]) ** 2) * p["head"]


def total(terms):
    first, *others = terms
    for term in others:
        first = first + term
    return first


def decayed(p, terms, *places):
    return [term + p["b"] if i in places else term for i, term in enumerate(terms)]


# Of the terms of all examples, one for each, what is added up instead.
UNEVEN = {
    "a decay beside the first": lambda p, t: decayed(p, t, 0),
    "a decay beside all but the last": lambda p, t: decayed(p, t, *range(B - 1)),
    "a decay beside one, taken from another": lambda p, t: [t[0] + p["b"], t[1] - p["b"], *t[2:]],
    "one of another slope": lambda p, t: [t[0] - p["head"], *t[1:]],
    "one twice": lambda p, t: [*t, t[0]],
    "one left out": lambda p, t: t[:-1],
    "multiples of a decay": lambda p, t: [term + i * p["b"] for i, term in enumerate(t)],
    "weights by place": lambda p, t: [term * WEIGHTS[i] for i, term in enumerate(t)],
    "decays by place": lambda p, t: [term + WEIGHTS[i] for i, term in enumerate(t)],
    "some of them twice": lambda p, t: [t[0] + t[1], jnp.tanh(p["b"]) * (t[0] + t[1]), *t[2:]],
}


@pytest.mark.parametrize("uneven", UNEVEN.values(), ids=UNEVEN)
def test_other_constants_of_some_are_refused(uneven):
    def gradient(p, x):
        return total(uneven(p, [slope(p, row) for row in x])) / B

    # What holds the head once looks like the head updated.
    own = hs.rewrite(gradient, batch_argnums=1, statistics=ASKED, gradients=lambda g: g)
    with pytest.raises(hs.Refusal, match="a constant is added"):
        own(PARAMS, X)


def test_a_slope_without_its_constant_beside_others_is_refused():
    def gradient(p, x):
        first, *others = (jnp.tanh(row @ p["w"]) for row in x)
        terms = [first**2 * p["head"], *((1 - h**2) * p["head"] for h in others)]
        return total(decayed(p, terms, *range(B)))

    with pytest.raises(hs.Refusal, match="a constant is added"):
        hs.rewrite(gradient, batch_argnums=1, statistics=ASKED)(PARAMS, X)


def test_a_part_of_them_is_no_gradient():
    def gradient(p, x):
        terms = [slope(p, row) for row in x]
        part = terms[0] + terms[1]
        return part, total([part, *terms[2:]])

    with pytest.raises(hs.Refusal, match="a constant is added"):
        hs.rewrite(gradient, batch_argnums=1, statistics=ASKED)(PARAMS, X)


def test_a_decay_beside_one_a_step_is_refused():
    def gradient(p, x):
        def step(sums, pair):
            return sums + (slope(p, pair[0]) + p["b"]) + slope(p, pair[1]), None

        return lax.scan(step, jnp.zeros(F), x.reshape(B // 2, 2, D))[0]

    with pytest.raises(hs.Refusal, match="a constant is added"):
        hs.rewrite(gradient, batch_argnums=1, statistics=ASKED)(PARAMS, X)
