"""`lax.map` in parts of which the last is smaller: a loop over the whole ones, and the rest beside.

Constants in each example's rows are theirs where the loop's rows and the rest's have the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D, PART = 8, 3, 3
DRAW = np.random.default_rng(0)
X = np.float32(DRAW.normal(size=(B, D)))
PARAMS = {
    name: np.float32(DRAW.normal(size=shape))
    for name, shape in {"w": (D, D), "b": (D,), "v": (D, D), "c": (D,), "s": ()}.items()
}


CONSTANTS = jnp.arange(1.0, D + 1)
TABLE = jnp.sin(jnp.arange(1.0, D * D + 1)).reshape(D, D)


def squares(params, x):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.sum((hidden @ params["v"] + params["c"] - x) ** 2) * jnp.exp(params["s"] * x[0])


def normalised(params, x):
    hidden = x @ params["w"]
    centred = hidden - hidden.mean()
    hidden = jax.nn.silu(centred / jnp.sqrt((centred**2).mean() + 1e-5) + params["b"])
    return -jax.nn.log_softmax(hidden @ params["v"] + params["c"])[0] * jnp.cos(params["s"])


def recurrent(params, x):
    def step(state, entry):
        state = jnp.tanh(state @ params["v"] + params["b"] + entry * params["c"])
        return state, state @ params["w"]

    return jnp.sum((lax.scan(step, x, x)[1] - x) ** 2) + jnp.sin(params["s"] * x[0])


def penalised(params, x):
    return squares(params, x) + jnp.sum(params["b"] ** 2) + params["s"]


ALONE = {
    "penalised": penalised,
    "squares": squares,
    "normalised": normalised,
    "recurrent": recurrent,
}
HOW = {"mapped": lambda f: f, "with remat": jax.checkpoint}


def in_parts(each):
    return lambda params, x: jnp.mean(lax.map(lambda row: each(params, row), x, batch_size=PART))


def assert_exact(loss, alone):
    found = hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.per_example())
    _, gradients = found(PARAMS, X)
    own = [jax.grad(alone)(PARAMS, row) for row in X]
    for key in PARAMS:
        expected = np.stack([one[key] for one in own])
        np.testing.assert_allclose(gradients[key], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ALONE)
def test_a_rest_step_has_the_same_constants(name, how):
    assert_exact(in_parts(HOW[how](ALONE[name])), ALONE[name])


def residuals(params, x, constant):
    """Linear in its rows, and in what is added to them."""
    return x @ params["w"] + constant


def parts(x):
    whole = B // PART * PART
    return x[:whole].reshape(-1, PART, D), x[whole:]


def together(first, rest, weights=(1, 1)):
    """The sums of squares of both, each times a weight."""
    return (weights[0] * jnp.sum(first**2) + weights[1] * jnp.sum(rest**2)) / B


def looped(f, rows):
    return lax.scan(lambda carry, row: (carry, f(row)), 0.0, rows)[1]


def other_weights(params, x):
    first, rest = parts(x)
    found = looped(lambda row: residuals(params, row, params["b"]), first)
    return together(found, residuals(params, rest, params["b"]), (1, 2))


def other_constants(params, x):
    first, rest = parts(x)
    found = looped(lambda row: residuals(params, row, params["b"]), first)
    return together(found, residuals(params, rest, 2 * params["b"]))


def another_parameter(params, x):
    first, rest = parts(x)
    found = looped(lambda row: residuals(params, row, params["b"]), first)
    return together(found, residuals(params, rest, params["c"]))


def constants_of_steps(params, x):
    first, rest = parts(x)
    numbers = jnp.arange(1.0, len(first) + 1)

    def step(carry, both):
        row, number = both
        return carry, residuals(params, row, number * params["b"])

    found = lax.scan(step, 0.0, (first, numbers))[1]
    return together(found, residuals(params, rest, params["b"]))


def none_in_the_rest(params, x):
    first, rest = parts(x)
    found = looped(lambda row: residuals(params, row, params["b"]), first)
    return together(found, residuals(params, rest, 0.0))


def rows_of_another_part(params, x):
    """A constant is in the first place of each row of the rest, and in the last of the loop's."""
    first, rest = parts(x)
    one = jnp.eye(D)
    found = looped(lambda row: residuals(params, row, params["s"] * one[2]), first)
    return together(found, residuals(params, rest, params["s"] * one[0]))


def weighed(params, first, rest):
    """Linear in what examples bring and the constants in it, with a parameter for each place."""
    return (jnp.sum(first * params["v"]) + jnp.sum(rest * params["v"])) / B


def entries_that_are_overwritten(params, x):
    """Stacks of which one entry alone is written, and the other holds what it began with."""

    def found(rows, start):
        entry = (jnp.sin(rows)[:, :, None] + CONSTANTS)[None]

        def write(stack, _):
            return lax.dynamic_update_slice(stack, entry, (0, 0, 0, 0)), None

        stack = jnp.full((2, len(rows), D, D), start)
        return lax.scan(write, stack, None, length=2)[0].sum(0)

    whole = B // PART * PART
    return weighed(params, found(x[:whole], 1.0), found(x[whole:], 2.0))


def tables(params, x, constant):
    """A table of D times D for each example."""
    return x[:, :, None] * params["w"] + constant


def sums_along_other_dimensions(params, x):
    whole = B // PART * PART
    first, rest = (tables(params, rows, params["v"]) for rows in (x[:whole], x[whole:]))
    return together(first.sum(1), rest.sum(2))


def constants_along_other_dimensions(params, x):
    whole, own = B // PART * PART, x[:, :, None] * TABLE
    first, rest = own[:whole] + CONSTANTS, own[whole:] + CONSTANTS[:, None]
    return weighed(params, first, rest)


def rows_with_penalties(params, x, first, rest):
    """As many times a penalty beside each row of the whole parts, and beside each of the rest."""

    def squares_of(row, times):
        return squares(params, row) + times * jnp.sum(params["b"] ** 2)

    whole = B // PART * PART
    parts = x[:whole].reshape(-1, PART, D)
    steps = looped(lambda rows: jax.vmap(lambda row: squares_of(row, first))(rows), parts)
    alone = jax.vmap(lambda row: squares_of(row, rest))(x[whole:])
    return (jnp.sum(steps) + jnp.sum(alone)) / B


def penalties_of_steps_alone(params, x):
    return rows_with_penalties(params, x, 1.0, 0.0)


def penalties_of_the_rest_alone(params, x):
    return rows_with_penalties(params, x, 0.0, 1.0)


def larger_penalties_in_the_rest(params, x):
    return rows_with_penalties(params, x, 1.0, 3.0)


def padding_among_rows(params, x):
    """Weights by which all rows have as much, and the examples have not, as one row is nobody's."""
    first = jnp.concatenate([x[:3], jnp.zeros((1, D))]) + 1.0
    return (3 * jnp.sum(first @ params["v"]) + 4 * jnp.sum((x[3:] + 1.0) @ params["v"])) / B


UNLIKE = [
    padding_among_rows,
    penalties_of_steps_alone,
    penalties_of_the_rest_alone,
    larger_penalties_in_the_rest,
    other_weights,
    other_constants,
    another_parameter,
    constants_of_steps,
    none_in_the_rest,
    rows_of_another_part,
    entries_that_are_overwritten,
    sums_along_other_dimensions,
    constants_along_other_dimensions,
]


@pytest.mark.parametrize("loss", UNLIKE, ids=lambda loss: loss.__name__)
def test_a_rest_step_with_other_constants_is_refused(loss):
    with pytest.raises(hs.Refusal):
        hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.per_example())(PARAMS, X)


def test_the_same_in_a_loop_and_a_rest_that_are_written_out():
    """The near miss of those above that is exact."""

    def loss(params, x):
        first, rest = parts(x)
        found = looped(lambda row: residuals(params, row, params["b"]), first)
        return together(found, residuals(params, rest, params["b"]))

    def alone(params, row):
        return jnp.sum(residuals(params, row, params["b"]) ** 2)

    assert_exact(loss, alone)


def test_the_same_constants_beside_parameters():
    """The near miss of constants along other dimensions that is exact."""

    def loss(params, x):
        whole, own = B // PART * PART, x[:, :, None] * TABLE + CONSTANTS
        return weighed(params, own[:whole], own[whole:])

    assert_exact(loss, lambda p, row: jnp.sum((row[:, None] * TABLE + CONSTANTS) * p["v"]))


def test_padding_that_is_not_zero_is_not_counted():
    """Though here each group has as many rows of it as of examples."""

    def loss(params, x):
        groups = [x[:3], x[3:6], x[6:]]
        padded = [jnp.concatenate([rows, jnp.zeros_like(rows)]) + 1.0 for rows in groups]
        return sum(jnp.sum(rows @ params["v"]) for rows in padded) / B

    with pytest.raises(hs.Refusal, match="gets its share of it"):
        hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.per_example())(PARAMS, X)


def test_ones_in_all_rows_of_unequal_parts():
    def loss(params, x):
        parts = [x[:3] + 1.0, x[3:] + 1.0]
        return sum(jnp.sum(rows @ params["v"]) for rows in parts) / B

    assert_exact(loss, lambda p, row: jnp.sum((row + 1.0) @ p["v"]))


def test_the_same_constants_in_tables_of_unequal_parts():
    def loss(params, x):
        whole = B // PART * PART
        first, rest = (tables(params, rows, params["v"]) for rows in (x[:whole], x[whole:]))
        return together(first.sum(1), rest.sum(1))

    assert_exact(loss, lambda p, row: jnp.sum(tables(p, row[None], p["v"]).sum(1) ** 2))
