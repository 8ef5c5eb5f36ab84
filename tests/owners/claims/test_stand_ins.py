"""Constants that a choice of nobody's may put in the place of what some examples own: refused,
where not all have as much of them; what rests on an example for sure, and what all have alike, is
exact.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, L, D = 4, 5, 3
DRAW = np.random.default_rng(0)
X, Y = (np.float32(DRAW.normal(size=(B, L, D))) for _ in range(2))
PARAMS = {
    name: np.float32(DRAW.normal(size=shape))
    for name, shape in {"w": (D,), "q": (D, D), "v": (D, D), "c": (D,), "b": (D,)}.items()
}
ROWS = np.array([1, 0, 0, 0, 1], bool)
NUMBER = np.int32(0)
ONES = jnp.ones((L, D))
CHOSEN, UNEVEN = "by a choice that no example makes", "its share of it"


def all_examples(params, x):
    return jnp.mean(jnp.sin(x @ params["w"]))


def beside(first):
    """A loss of all examples, and beside it one of what may be the first one's."""

    def loss(params, x, rows, number):
        return jnp.mean(first(params, x, rows, number)) + all_examples(params, x)

    return loss


def selected(x, rows):
    return jnp.where(rows[:, None], x[0], ONES)


def branched(x, number):
    return lax.cond(number > 0, lambda: x[0], lambda: ONES)


def switched(params, x, rows, number):
    return jnp.sin(lax.switch(number, [lambda: x[0], lambda: ONES, lambda: ONES]) @ params["w"])


def of_integers(params, x, rows, number):
    tokens = jnp.where(rows, jnp.argmax(x[0], -1), 1)
    return jnp.sin(params["q"][tokens] @ params["w"])


def written_by_steps(params, x, rows, number):
    def step(carry, row):
        return carry, jnp.where(row, x[0, 0], ONES[0])

    return jnp.sin(lax.scan(step, 0.0, rows)[1] @ params["w"])


def carried(params, x, rows, number):
    def step(carry, row):
        return ONES[0], jnp.sin(carry @ params["w"])

    return lax.scan(step, x[0, 0], rows)[1]


def until(params, x, rows, number):
    last = lax.fori_loop(0, number, lambda _, carry: jnp.cos(carry), ONES)
    return jnp.sin(lax.fori_loop(0, number, lambda _, carry: x[0], last) @ params["w"])


def beside_what_is_one_part(params, x, rows, number):
    """Of the products that are summed up one has a factor of the example."""
    one = jnp.concatenate([x[0, 0, :1], ONES[0, 1:]])
    return jnp.sin(selected(x, rows)) @ one * params["b"].sum()


def picked_by_it(params, x, rows, number):
    """Where the example picks the one side, the other is constant."""
    chosen = selected(x, rows)
    return jnp.sin(jnp.where(chosen > 0, x[0], 0.5) @ params["w"])


FIRST = {
    "select": lambda p, x, rows, n: jnp.sin(selected(x, rows) @ p["w"]),
    "a branch": lambda p, x, rows, n: jnp.sin(branched(x, n) @ p["w"]),
    "one of three branches": switched,
    "integers": of_integers,
    "rows written by steps": written_by_steps,
    "a carry": carried,
    "a loop of unknown length": until,
    "a sort": lambda p, x, rows, n: jnp.exp(jnp.sort(selected(x, rows), 0) @ p["w"]),
    "a maximum": lambda p, x, rows, n: jnp.exp((selected(x, rows) @ p["q"]).max(1)),
    "put together": lambda p, x, rows, n: jnp.sin(
        jnp.concatenate([jnp.cos(selected(x, rows)), x[0]]) @ p["w"]
    ),
    "a product with itself": lambda p, x, rows, n: jnp.sin(selected(x, rows)) ** 2 @ p["w"],
    "added to what is its own": lambda p, x, rows, n: (
        jnp.sin(selected(x, rows) @ p["w"]) + x[0, :, 0]
    ),
    "a product in part": beside_what_is_one_part,
    "a choice by it": picked_by_it,
}


def refused(loss, why, *beside):
    with pytest.raises(hs.Refusal, match=why):
        hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.per_example())(PARAMS, X, *beside)


@pytest.mark.parametrize("name", FIRST)
def test_what_may_be_nobodys_is_refused(name):
    refused(beside(FIRST[name]), CHOSEN, ROWS, NUMBER)


def laid_out(place):
    return beside(lambda p, x, rows, n: jnp.sin(place(x[:2, 0]) @ p["w"]))


PLACES = {
    "stacked": lambda two: jnp.stack([two, ONES[:2]], 1),
    "put behind, and reshaped": lambda two: jnp.concatenate([two, ONES[:2]]).reshape(2, 2, D),
    "padded": lambda two: jnp.pad(two, ((0, 0), (0, D)), constant_values=1.0).reshape(2, 2, D),
    "set": lambda two: jnp.ones((2, 2, D)).at[:, 0].set(two),
}


@pytest.mark.parametrize("name", PLACES)
def test_constants_in_rows_of_some_examples_are_not_theirs(name):
    refused(laid_out(PLACES[name]), UNEVEN, ROWS, NUMBER)


def by_example(each):
    """The mean of one example's losses, each by itself in the program."""
    return lambda params, x, *rest: sum(each(params, x[i], i, *rest) for i in range(B)) / B


def masked(params, x, mask, constant=1.0):
    return jnp.mean(jnp.sin(jnp.where(mask, x, constant) @ params["w"]))


UNLIKE = {
    "masks of their own": lambda p, x, i, rows: masked(p, x, rows[i]),
    "constants of their own": lambda p, x, i, rows: masked(p, x, rows[0], 1.0 + i),
    "weights of their own": lambda p, x, i, rows: (1 + i) * masked(p, x, rows[0]),
    "one alone": lambda p, x, i, rows: masked(p, x, rows[0] if i == 0 else True),
    "another function": lambda p, x, i, rows: (
        (jnp.sin if i else jnp.cos)(jnp.where(rows[0], x, 1.0)).mean() * p["b"].sum()
    ),
    "masks of their own beside one that all have": lambda p, x, i, rows: jnp.mean(
        (jnp.sin(jnp.where(rows[i], x, 1.0)) + jnp.where(rows[0], x, 1.0)) @ p["w"]
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_examples_with_other_constants_are_refused(name):
    refused(by_example(UNLIKE[name]), f"{CHOSEN}|{UNEVEN}|equal share of it", ROWS)


def attention(params, x, mask):
    scores = jnp.where(mask, x @ params["q"] @ x.T, -1e9)
    return jnp.mean((jax.nn.softmax(scores) @ (x @ params["v"])) ** 2)


def reconstruction(params, x, rows):
    hidden = jnp.tanh(jnp.where(rows[:, None], x, params["c"]) @ params["q"] + params["b"])
    return jnp.mean((hidden @ params["v"] + params["b"] - x) ** 2)


def mixed_in(params, x, rows):
    """A product with what is the example's for sure."""
    return jnp.mean(jnp.sin(jnp.where(rows[:, None], x, 1.0) @ params["w"]) * jnp.cos(x[:, 0]))


ALONE = {
    "a mask that all have": lambda p, x, rows: masked(p, x, rows[:, None]),
    "a mask of scores": lambda p, x, rows: attention(p, x, rows),
    "a known mask of scores": lambda p, x, rows: attention(p, x, np.tri(L, dtype=bool)),
    "masked rows": reconstruction,
    "a product": mixed_in,
    "a branch between two of its values": lambda p, x, rows: jnp.mean(
        jnp.sin(lax.cond(rows[0], lambda: x, lambda: 2 * x) @ p["w"])
    ),
    "zeros in its place": lambda p, x, rows: jnp.mean(
        jnp.tanh(jnp.where(rows[:, None], x, 0.0) @ p["w"] + p["b"][0])
    ),
}
GROUPS = {
    "by example": lambda f: lambda p, x, rows: sum(f(p, x[i], rows) for i in range(B)) / B,
    "by group": lambda f: (
        lambda p, x, rows: (
            sum(jax.vmap(f, (None, 0, None))(p, x[i : i + 2], rows).mean() for i in (0, 2)) / 2
        )
    ),
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ALONE)
def test_what_all_have_alike_is_exact(name, group):
    loss = GROUPS[group](ALONE[name])
    found = hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.per_example())
    (_, each), params = found(PARAMS, X, ROWS), PARAMS
    alone = [jax.grad(ALONE[name])(params, X[b], ROWS) for b in range(B)]
    for key in params:
        expected = np.stack([own[key] for own in alone])
        np.testing.assert_allclose(each[key], expected, rtol=1e-4, atol=1e-5)
