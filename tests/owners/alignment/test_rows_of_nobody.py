"""Rows of nobody among the examples': constants that are put beside them, and meet them in sums of
parts. A batch of one example, repeated, is the oracle: each has its share of a constant of all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, WIDTH = 4, 3
RNG = np.random.default_rng(0)
PARAMS = {
    name: RNG.normal(size=size).astype(np.float32)
    for name, size in [("w", WIDTH), ("b", WIDTH), ("v", (WIDTH, WIDTH))]
}
PARAMS["c"] = np.float32(0.7)
X = RNG.normal(size=(B, WIDTH)).astype(np.float32)
STATISTICS = {"each": hs.per_example(), "norms": hs.norms()}


def with_a_row(x, number=1.0):
    return jnp.concatenate([x, jnp.full((1, WIDTH), number)])


def among(x):
    """Rows of constants between the examples', one for three of these and one for one."""
    one = jnp.ones((1, WIDTH))
    return jnp.concatenate([x[:2], one, x[2:3], x[3:], one])


def in_two(rows, term, cut):
    return term(rows[:cut]) + term(rows[cut:])


def uneven_parts(p, x):
    """Of the values of all rows the last two, of which one is no example's."""
    h = jnp.tanh(with_a_row(x) * p["w"])
    return in_two(h, lambda rows: jnp.sum(rows * p["w"]), B - 1)


def summed_first(p, x):
    h = jnp.sin(jax.nn.relu(jnp.sin(among(x)) + p["b"]))
    return in_two(h, lambda rows: rows.sum(0) @ p["w"], 4)


def scaled_and_summed(p, x):
    return in_two(with_a_row(x) * p["b"], lambda rows: rows.sum(0) @ p["w"], B - 1)


def written_over(p, x):
    h = jnp.ones((B + 1, WIDTH)).at[:B].set(jnp.tanh(x * p["w"]))
    return in_two(h, lambda rows: jnp.sum(rows @ p["v"]), 2)


def chosen(p, x):
    own = jnp.arange(B + 2) < B
    h = jnp.where(own[:, None], jnp.tanh(jnp.pad(x, [(0, 2), (0, 0)]) @ p["v"]), 0.5)
    return in_two(h, lambda rows: jnp.sum(rows * p["w"]), B - 1)


def padded_columns(p, x):
    h = jnp.pad(jnp.tanh(x * p["w"])[:2], [(0, 0), (0, 1)], constant_values=1.0)
    return jnp.sum(h * jnp.append(p["b"], 1.0)) * jnp.sum(p["b"]) + jnp.sum(
        jnp.tanh(x[2:] * p["w"])
    )


def with_a_column(p, x):
    return jnp.concatenate([jnp.tanh(x * p["w"]), jnp.ones((B, 1))], 1)


def column_of_some(p, x):
    weights = jnp.append(p["b"], p["c"])
    return jnp.sum(with_a_column(p, x)[:2].sum(0) @ weights) + jnp.sum(jnp.tanh(x[2:] * p["w"]))


def in_a_window(p, x):
    rows = jnp.concatenate([jnp.ones((1, WIDTH)), x])
    pooled = lax.reduce_window(rows[:2], 0.0, lax.add, (2, 1), (2, 1), "VALID")
    return jnp.sum(pooled @ p["w"]) + jnp.sum(rows[2:] @ p["w"])


def sorted_among(p, x):
    rows = jnp.concatenate([jnp.ones((1, WIDTH)), x])
    return jnp.sum(jnp.sort(rows[:2], 0).sum(0) @ p["w"]) + jnp.sum(rows[2:] @ p["w"])


def place_by_place(p, x):
    """The third row is an example's, and a constant that lies beside the first two."""
    scaled = x * p["w"]
    two = jnp.pad(scaled[:2], [(0, 1), (0, 0)], constant_values=1.0)
    rows = two + jnp.pad(scaled[2:3], [(2, 0), (0, 0)])
    return jnp.sum(rows @ p["b"]) + jnp.sum(scaled[3:] @ p["b"])


def landing_on_an_example(p, x):
    scaled = x * p["w"]
    rows = jnp.concatenate([scaled[:1], jnp.ones((1, WIDTH)), scaled[1:2]])
    landed = jnp.zeros((2, WIDTH)).at[np.array([0, 0, 1])].add(rows)
    return jnp.sum(landed @ p["b"]) + jnp.sum(scaled[2:] @ p["b"])


def chosen_by_two_dimensions(p, x):
    told = np.arange(B)[:, None] >= np.arange(WIDTH)
    h = jnp.where(told, x * p["w"], 1.0)
    return in_two(h, lambda rows: rows.sum(0) @ p["b"], 1)


UNEVEN = [
    place_by_place,
    landing_on_an_example,
    chosen_by_two_dimensions,
    sorted_among,
    in_a_window,
    uneven_parts,
    summed_first,
    scaled_and_summed,
    written_over,
    chosen,
    padded_columns,
    column_of_some,
]


@pytest.mark.parametrize("loss", UNEVEN, ids=lambda loss: loss.__name__)
def test_constants_in_some_parts_are_no_examples(loss):
    with pytest.raises(hs.Refusal, match="gets its share of it"):
        hs.grad(lambda p, x: loss(p, x) / B, statistics=STATISTICS)(PARAMS, X)


def separated(x, number):
    """The examples' rows with rows of constants between them, and none behind the last."""
    pairs = jnp.pad(x[:, None], [(0, 0), (0, 1), (0, 0)], constant_values=number)
    return pairs.reshape(-1, WIDTH)[:-1]


def separated_by_ones(p, x):
    return jnp.sum(jnp.tanh(separated(x, 1.0) * p["w"]))


def separated_by_zeros(p, x):
    return jnp.sum(jnp.cos(separated(x, 0.0) * p["w"]) * p["b"])


def separated_and_written_over(p, x):
    """One of the rows between holds another constant."""
    rows = jnp.stack([x, jnp.zeros((B, WIDTH))], 1).reshape(-1, WIDTH)
    return jnp.sum(jnp.cos(rows).at[1].set(0.5) * p["w"])


SEPARATED = [separated_by_ones, separated_by_zeros, separated_and_written_over]


@pytest.mark.parametrize("loss", SEPARATED)
def test_constants_between_the_rows_are_no_examples(loss):
    with pytest.raises(hs.Refusal, match="in the place of what belongs to some examples"):
        hs.grad(lambda p, x: loss(p, x) / B, statistics=STATISTICS)(PARAMS, X)


def put(rows):
    return rows.at[0].set(1.0)


def chosen_by_one_truth(p, x, is_asked):
    h = jnp.tanh(x * p["w"])
    return jnp.sum(jnp.where(is_asked, put(h), h) * p["b"])


def in_a_branch(p, x, is_asked):
    return jnp.sum(lax.cond(is_asked, put, jnp.sin, jnp.tanh(x * p["w"])) * p["b"])


def at_a_place_that_is_given(p, x, is_asked):
    h = jnp.tanh(x * p["w"])
    return jnp.sum(h.at[is_asked.astype(int)].set(1.0) * p["b"])


@pytest.mark.parametrize("loss", [chosen_by_one_truth, in_a_branch, at_a_place_that_is_given])
def test_constants_that_may_be_in_one_examples_place_are_not_its_own(loss):
    rewritten = hs.grad(lambda p, x, t: loss(p, x, t) / B, batch_argnums=1, statistics=STATISTICS)
    with pytest.raises(hs.Refusal, match="gets its share of it"):
        rewritten(PARAMS, X, jnp.asarray(True))


def whole(p, x):
    return jnp.sum(jnp.tanh(jnp.tanh(with_a_row(x) @ p["v"] + p["b"]) * p["w"]))


def one_by_one(p, x):
    """Products in whose factors the constants are zero: the parts hold nothing of them."""
    h = jnp.tanh(with_a_row(x) @ p["v"] + p["b"])
    own = with_a_row(jnp.ones((B, WIDTH)), 0.0)
    return in_two(h * own * p["w"], jnp.sum, B - 1)


def by_cotangents(p, x):
    h = jnp.tanh(with_a_row(x) @ p["v"] + p["b"])
    return in_two(h[:B], lambda rows: jnp.sum(jnp.square(rows * p["w"])), 1)


def of_zeros(p, x):
    return in_two(with_a_row(x, 0.0) * p["b"], lambda rows: rows.sum(0) @ p["w"], B - 1)


def told_by_place(p, x):
    own = jnp.arange(B + 2) < B
    h = jnp.where(own[:, None], jnp.tanh(jnp.pad(x, [(0, 2), (0, 0)]) @ p["v"] + p["b"]), 0.0)
    return in_two(h, lambda rows: jnp.sum(rows * p["w"]), B - 1)


def column_of_all(p, x):
    weights = jnp.append(p["b"], p["c"])
    return in_two(with_a_column(p, x), lambda rows: jnp.sum(jnp.sin(rows @ weights)), 1)


EVEN = [whole, one_by_one, by_cotangents, of_zeros, told_by_place, column_of_all]


@pytest.mark.parametrize("loss", EVEN, ids=lambda loss: loss.__name__)
def test_what_is_zero_or_of_all_is_shared(loss):
    found = hs.grad(lambda p, x: loss(p, x) / B, statistics=STATISTICS)(PARAMS, X)[1]
    alone = [jax.grad(loss)(PARAMS, jnp.tile(x, (B, 1))) for x in X]
    each = jax.tree.map(lambda *rows: np.stack(rows) / B, *alone)
    flat = np.hstack([leaf.reshape(B, -1) for leaf in jax.tree.leaves(each)])
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)  # noqa: E731
    jax.tree.map(close, found["each"], each)
    close(found["norms"], np.linalg.norm(flat, axis=1))
