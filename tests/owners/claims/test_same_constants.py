"""Groups whose terms are made alike, with constants that are not: refused; near to these, exact."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, T, D = 8, 5, 2
X = jnp.sin(jnp.arange(B * D) ** 1.3).reshape(B, D)
TOKENS = jnp.sin(jnp.arange(6 * T * D) ** 1.1).reshape(6, T, D)
C = jnp.array([0.3, 0.7])
ROWS = jnp.cos(jnp.arange(B * D) ** 1.2).reshape(B, D)
CASES = {}


def case(x):
    """Note a function of constants and these examples."""

    def noted(made):
        CASES[made.__name__] = made, x
        return made

    return noted


def rows(x, c):
    return jnp.tanh(x * c) + c


def pairs(x):
    return [x[i : i + 2] for i in range(0, B, 2)]


def halves(x):
    return x[:4], x[4:]


@case(X)
def what_is_not_linear_in_constants(c, x):
    one, two = (jnp.tanh(part * c) for part in halves(x))
    one, two = one + (jnp.exp(2 * (0.5 * c)) + 3 * c), two + (jnp.exp(4 * (0.25 * c)) + 6 * c)
    return one.sum(0) + 0.5 * two.sum(0)


@case(X)
def a_sum_and_a_maximum(c, x):
    both = jnp.stack([c, 2 * c])
    constants = (lax.reduce(both, 0.0, by, (0,)) for by in (lax.max, lax.add))
    return sum(jnp.tanh(part * c).sum(0) + k for part, k in zip(halves(x), constants, strict=True))


@case(TOKENS)
def a_sum_and_a_maximum_over_positions(c, x):
    one, two = (
        lax.reduce(rows(part, c), 0.0, by, (1,)) + c
        for part, by in ((x[:3], lax.max), (x[3:], lax.add))
    )
    return one.sum(0) + two.sum(0)


@case(X)
def other_kernels(c, x):
    def part(x, number):
        kernel, dims = jnp.full((1, 1, 1), number), ("NCH", "OIH", "NCH")
        h = rows(x, c)[:, None]
        return lax.conv_general_dilated(h, kernel, (1,), "VALID", dimension_numbers=dims).sum(
            (0, 1)
        )

    return part(x[:4], 2.0) + part(x[4:], 3.0)


@case(X)
def examples_laid_across(c, x):
    return sum(rows(part, c).reshape(2, -1).sum(1) for part in (x[:3], x[3:]))


@case(TOKENS)
def other_numbers_of_positions(c, x):
    return sum(
        rows(part, c).reshape(3, 2, -1).sum((0, 2)) / part.shape[1] for part in (x[:3, :3], x[3:])
    )


@case(X)
def every_third_number(c, x):
    return sum(rows(part, c).ravel()[::3].reshape(2, 1).sum(0) for part in pairs(x))


@case(X)
def another_column_of_each(c, x):
    both = np.array([0, 1])
    return sum(rows(part, c)[both, both].sum(0, keepdims=True) for part in pairs(x))


@case(X)
def one_column_of_each_half(c, x):
    h = rows(x, c)
    return h[:4, :1].sum(0) + h[4:, 1:].sum(0)


@case(X)
def rows_of_two_arrays(c, x):
    one, two = jnp.tanh(x * c) + c, jnp.tanh(x * c) + 2 * c
    return one[:4].sum(0) + two[4:].sum(0)


@case(X)
def constants_by_row_in_a_branch(c, x):
    h = lax.cond(c[0] > 0, lambda h: jnp.tanh(h) + ROWS, jnp.tanh, x * c)
    return h[:4].sum(0) + h[4:].sum(0)


@case(X)
def two_groups_in_a_step(c, x):
    def step(total, over):
        one, two, weight = over
        return total + (rows(one, c) * weight).sum(0) + (rows(two, c) * weight).sum(0), None

    parts = (part.reshape(2, 2, D) for part in halves(x))
    return lax.scan(step, jnp.zeros(D), (*parts, jnp.exp(jnp.arange(2.0) * c[0])))[0]


@case(X)
def moved_sums_of_which_one_has_a_constant(c, x):
    one, two = halves(x)
    return jnp.flip(rows(one, c).sum(0) + jnp.tanh(two).sum(0))


@case(X)
def moved_sums_of_loops(c, x):
    def part(first):
        add = lambda k, total: total + lax.dynamic_index_in_dim(x, first + k, keepdims=False)  # noqa: E731
        return jnp.flip(lax.fori_loop(0, 4, add, jnp.zeros(D)))

    return (part(0) + c * c) + part(4)


@case(X[:4])
def a_sum_behind_a_barrier_with_all(c, x):
    one, _ = lax.optimization_barrier((x[0] + x[1], x))
    return (one + c * c) + (x[2] + x[3])


@case(X[:4])
def sums_over_data_of_all(c, x):
    return ((x[0] + x[1]) / jnp.sum(x) + c * c) + (x[2] + x[3]) / jnp.sum(x)


@case(X[:4])
def single_examples_beside_groups(c, x):
    order = jnp.array([0, 2, 1, 3, 0, 2])

    def step(total, k):
        group = lax.dynamic_slice(x, (2 * (k % 2), 0), (2, D))
        one = lax.dynamic_index_in_dim(x, order[k], keepdims=False)
        return total + ((jnp.tanh(group * c).sum(0) + c * c) + jnp.sin(one * c)), None

    return lax.scan(step, jnp.zeros(D), jnp.arange(6))[0]


@case(X)
def a_constant_carry_behind_a_barrier(c, x):
    def step(carry, row):
        constant, total = carry
        constant, term = lax.optimization_barrier((constant, constant + jnp.tanh(row)))
        return (constant, total + term), None

    return lax.scan(step, (c * c, jnp.zeros(D)), x[:4])[0][1] + jnp.tanh(x[4:] * c).sum(0)


@case(X)
def faded_by_what_a_run_tells(c, x):
    def part(x):
        step = lambda total, own: ((total + rows(own, c).sum(0)) * c.mean(), None)  # noqa: E731
        return lax.scan(step, jnp.zeros(D), x.reshape(2, 2, D))[0]

    return sum(map(part, halves(x)))


@case(X[:4])
def in_two_rows_and_beside_the_others(c, x):
    h = jnp.tanh(x * c)
    return (h[0] + c * c) + (h[1] + c * c) + (h[2:].sum(0) + c * c + c * c)


@case(X)
def sums_along_other_dimensions(c, x):
    tables = (jnp.tanh(part)[:, :, None] + jnp.broadcast_to(c, (D, D)) for part in halves(x))
    return sum(table.sum(dims) for table, dims in zip(tables, [(0, 1), (0, 2)], strict=True))


@case(X)
def other_numbers_of_products(c, x):
    def part(x, number):
        total, numbers = jnp.tanh(x).sum(0) + c, jnp.full(number, c[0])
        return lax.dot_general(total, numbers, (((), ()), ((), ()))).sum(1)

    return sum(part(x, number) for x, number in zip(halves(x), [2, 3], strict=True))


def each_of(made, x):
    asked = {"batch_argnums": 1, "statistics": hs.per_example(), "loss_reduction": "sum"}
    return hs.rewrite(made, **asked)(C, x)


@pytest.mark.parametrize("name", CASES)
def test_constants_that_are_not_shown_to_be_the_same_are_refused(name):
    with pytest.raises(hs.Refusal, match=r"gets its share of it|equal share of it|share of this"):
        each_of(*CASES[name])


EVEN = {
    "columns": lambda c, x: sum(rows(part, c)[:, np.array([1, 0, 1])].sum(0) for part in halves(x)),
    "a column": lambda c, x: sum(rows(part, c)[:, :1].sum(0) for part in halves(x)),
    "rows of one": lambda c, x: sum(part.sum(0) for part in halves(rows(x, c))),
    "a kernel": lambda c, x: sum(
        (rows(part, c) @ jnp.array([[2.0, 1.0], [0.0, 1.0]])).sum(0) for part in halves(x)
    ),
}


@pytest.mark.parametrize("made", EVEN.values(), ids=EVEN)
def test_the_same_constants_are_each_ones(made):
    found = each_of(made, X)[1]
    for b, own in enumerate(found):
        np.testing.assert_allclose(own, made(C, X[b : b + 1]), rtol=1e-5, atol=1e-6)
