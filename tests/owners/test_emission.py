"""Statistics of examples that lie anywhere: by owners, they are those of one example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.programs.data_moves import MOVES, ORDER, B, W, X, energy

LIMIT = 0.2
STATISTICS = {
    "each": hs.per_example(),
    "square": hs.second_moment(),
    "absolute": hs.mean_abs(),
    "variance": hs.variance(),
    "norms": hs.norms(),
    "clipped": hs.clipped_mean(LIMIT),
    "gram": hs.gram(),
    "inner": hs.inner_products(),
}


def expected(g):
    """The statistics of gradients [B, *parameter], in float64."""
    rows = g.reshape(len(g), -1)
    norms = np.linalg.norm(rows, axis=1)
    scales = np.minimum(1, LIMIT / norms).reshape(-1, *[1] * (g.ndim - 1))
    return {
        "each": g,
        "square": np.mean(g**2, 0),
        "absolute": np.mean(np.abs(g), 0),
        "variance": np.var(g, 0, ddof=1),
        "norms": norms,
        "clipped": np.mean(scales * g, 0),
        "gram": rows @ rows.T,
        "inner": rows @ rows.mean(0),
    }


def assert_exact(loss, gradients, w=W, x=X, **planning):
    gradient, statistics = hs.grad(loss, statistics=STATISTICS, **planning)(w, x)
    wanted = np.asarray(gradients, np.float64)
    np.testing.assert_allclose(gradient, wanted.mean(0), rtol=1e-5, atol=1e-6)
    for name, value in expected(wanted).items():
        np.testing.assert_allclose(statistics[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


def alone(of_row, w=W, x=X):
    gradient = jax.jit(jax.grad(of_row))
    return jnp.stack([gradient(w, row) for row in x])


@pytest.mark.parametrize("loss", MOVES.values(), ids=MOVES.keys())
def test_moved_examples_are_told_apart(loss):
    assert_exact(loss, alone(energy))


OVERWRITTEN = {
    "with its own": lambda x: x.at[1, 0].set(x[1, 2]),
    "with a constant": lambda x: x.at[1, 0].set(0.0),
    "of a flat batch": lambda x: x.ravel().at[x.shape[1]].set(0.0).reshape(x.shape),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_one_element_that_is_overwritten_is_no_other_examples(name):
    overwritten = OVERWRITTEN[name]
    assert_exact(
        lambda w, x: energy(w, overwritten(x)) / B, alone(energy, W, overwritten(jnp.array(X)))
    )


def test_a_number_may_be_added_to_a_gradient_of_one_number():
    def shifted(w, x):
        return jax.grad(lambda w: jnp.mean(jnp.sin(w * x)))(w).at[...].add(0.1)

    x = jnp.arange(4.0)
    _, each = hs.rewrite(shifted, batch_argnums=1, statistics=hs.per_example())(2.0, x)
    np.testing.assert_allclose(each, x * jnp.cos(2 * x) + 0.1, rtol=1e-5)


FIRST, *OTHERS = MOVES


@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_moved_examples_are_told_apart_where_all_are_lifted(name):
    assert_exact(MOVES[name], alone(energy), strategy="lift")


def test_rows_of_nobody_are_everybodys():
    """Rows of zeros that are added have a gradient of their own, behind an offset."""

    def of_rows(w, rows):
        return jnp.sum(jnp.sin(rows @ w + w[0]) ** 2)

    padding = jax.grad(of_rows)(W, jnp.zeros((2, 3)))
    assert_exact(
        lambda w, x: of_rows(w, jnp.pad(x, ((0, 2), (0, 0)))) / B, alone(of_rows) + padding / B
    )


def test_rows_of_a_table_are_everybodys():
    """As many as the examples, and none of them anybody's own."""
    table = np.sin(np.arange(3.0 * B, dtype=np.float32)).reshape(B, 3)

    def of_rows(w, rows):
        return jnp.sum(jnp.sin(rows @ w + w[0]) ** 2)

    shared = jax.grad(of_rows)(W, table)
    assert_exact(
        lambda w, x: of_rows(w, jnp.concatenate([x, table])) / B, alone(of_rows) + shared / B
    )


def test_numbers_of_a_table_are_everybodys():
    """Beside the numbers that each example gives: what is scattered is scaled, and not where."""
    ids, table = jnp.arange(B) % 3, np.array([1, 0, 2, 1, 0, 2, 1, 0])

    def of_numbers(w, numbers):
        return jnp.sum(jnp.sin(w[numbers]) ** 2)

    def loss(w, x):
        return of_numbers(w, jnp.concatenate([x, jnp.asarray(table)])) / B

    own = alone(lambda w, number: of_numbers(w, number[None]), x=ids)
    assert_exact(loss, own + jax.grad(of_numbers)(W, table) / B, x=ids)


def test_rows_of_an_example_may_lie_apart():
    """Example b has rows b, B + b and, of another order, 2 B + i."""

    def of_rows(w, rows):
        return jnp.sum(jnp.sin(rows @ w) * jnp.cos(rows @ w[::-1]))

    def loss(w, x):
        return of_rows(w, jnp.concatenate([x, 2 * x, 3 * x[ORDER]])) / B

    assert_exact(loss, alone(lambda w, row: sum(of_rows(w, k * row) for k in (1, 2, 3))))


def test_a_weight_beside_the_examples_term():
    def loss(w, x):
        return energy(w, x[::-1]) / B + jnp.sum(w**3)

    assert_exact(loss, alone(energy) + 3 * W**2)


def test_parts_of_parts_of_several_examples():
    def loss(w, x):
        def outer(s, half):
            inner = lax.scan(lambda t, pair: (t + energy(w, pair[::-1]), None), 0.0, half)[0]
            return s + inner, None

        return lax.scan(outer, 0.0, x.reshape(2, 2, 2, 3))[0] / B

    assert_exact(loss, alone(energy))
