"""Contributions where examples meet: those of each example's copy of the parameters, or a refusal.

Each program is a function of the rows h [8, 4], row b being made with copy b, and of x [8, 3].
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.owners.verdicts import reasons, reasons_in
from tests.programs.data_moves import ORDER, B, W, X

M = np.arange(1.0, B + 1, dtype=np.float32)[:, None]
GROUP = np.array([0, 0, 1, 1, 1, 2, 2, 0])


def halves(h):
    return h.reshape(2, 4, 4)


def summed_by_group(h):
    return jax.ops.segment_sum(h, GROUP, 3)


def weighted_mean(h):
    """The mean, once more for each place."""
    return M * jnp.tanh(h.mean(0))


EXACT = {
    "centred by group": lambda h, x: jnp.sum((halves(h) - halves(h).mean(1, keepdims=True)) ** 2),
    "cumulated": lambda h, x: jnp.sum(jnp.cumsum(h, 0) ** 2),
    "sorted": lambda h, x: jnp.sum((jnp.sort(h, 0) * M) ** 2),
    "the largest": lambda h, x: jnp.sum((h - h.max(0)) ** 2),
    "similarities": lambda h, x: jnp.sum(jnp.sin(h @ h.T) * M),
    "similarities, turned": lambda h, x: jnp.sum(jnp.sin(h @ h.T) * jnp.cos(h @ h.T).T * M),
    "similarities, summed": lambda h, x: jnp.sum(h @ h.T) ** 2,
    "a mean for each place": lambda h, x: jnp.sum(weighted_mean(h) ** 2),
    "beside each place": lambda h, x: jnp.sum((weighted_mean(h) + h) ** 2),
    "in two orders": lambda h, x: jnp.sum((M * h.mean(0))[::-1] * h + (M * h.mean(0)) * h**2),
    "by group, and back": lambda h, x: jnp.sum((h - summed_by_group(h)[GROUP]) ** 2),
    "by group, and back to others": lambda h, x: jnp.sum(
        (h - summed_by_group(h)[GROUP[::-1]]) ** 2
    ),
    "a running sum": lambda h, x: jnp.sum(
        lax.scan(lambda s, r: (s + r, jnp.tanh(r * s)), jnp.zeros(4), h)[1]
    ),
    "the largest of neighbours": lambda h, x: jnp.sum(
        lax.reduce_window(h, -jnp.inf, lax.max, (2, 1), (1, 1), "VALID")
    ),
    "a ratio": lambda h, x: jnp.sum(h.sum(0) / (1 + (h**2).sum(0))),
    "chosen by data": lambda h, x: jnp.sum(h[jnp.argsort(x[:, 0])] * h),
    "scattered in another order": lambda h, x: jnp.sum(h.at[ORDER].add(h) ** 2),
    "all pairs": lambda h, x: jnp.sum(jnp.abs(h[:, None] - h[None]) * M),
    "layers that shift": lambda h, x: jnp.sum(
        lax.scan(lambda s, _: (jnp.tanh(s - jnp.roll(s, 1, 0)), None), h, None, length=3)[0]
    ),
    "all triples": lambda h, x: jnp.sum(jnp.tanh(jnp.einsum("if,jf,kf->ijk", h, h, h))),
    "a mean on the way": lambda h, x: jnp.sum(jnp.tanh(jnp.einsum("bi,bj->bij", h, h * h.mean(0)))),
}


@pytest.mark.parametrize("name", EXACT)
def test_contributions_flow_into_each_examples_copy(name):
    program = EXACT[name]
    found = hs.grad(
        lambda w, x: program(jnp.tanh(x @ w), x),
        statistics=hs.per_example(),
        on_mixing="contribution",
    )(W, X)[1]

    def of_copies(copies):
        return program(jnp.tanh(jnp.einsum("bd,bdf->bf", X, copies)), X)

    expected = B * jax.grad(of_copies)(jnp.stack([W] * B))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * jnp.abs(expected).max())


# Pairs of examples lie in one element; each is computed with its own copy.
PAIRED = {
    "neighbours": lambda h: h[1:] * h[:-1],
    "beside the rolled": lambda h: h * jnp.roll(h, 1, 0),
    "beside the permuted": lambda h: h * h[ORDER],
    "halves multiplied": lambda h: h[:4] * h[4:],
    "halves added": lambda h: (h[:4] + h[4:]) ** 2,
    "the larger of halves": lambda h: jnp.maximum(h[:4], h[4:]),
    "all multiplied": lambda h: jnp.prod(1 + h, 0),
    "beside a constant of the rolled": lambda h: (h - lax.stop_gradient(jnp.roll(h, 1, 0))) ** 2,
}


@pytest.mark.parametrize("name", PAIRED)
def test_pairs_in_one_element(name):
    paired = PAIRED[name]

    def shared(w, x):
        return jnp.sum(jnp.sin(paired(jnp.tanh(x @ w))))

    def of_copies(copies):
        return jnp.sum(jnp.sin(paired(jnp.tanh(jnp.einsum("bd,bdf->bf", X, copies)))))

    each = hs.grad(shared, statistics=hs.per_example(), on_mixing="contribution")(W, X)[1]
    expected = B * jax.grad(of_copies)(jnp.stack([W] * B))
    np.testing.assert_allclose(each, expected, rtol=0, atol=2e-5 * jnp.abs(expected).max())


V = np.float32([0.5, -1, 2])


def spread(v, x):
    """A sum over the examples, once more for each place."""
    return M * jnp.tanh(jnp.sum(jnp.tanh(x * v), 0))


NEIGHBOURS = np.sin(np.arange(B * B, dtype=np.float32)).reshape(B, B)


def neighbours(v, x):
    """Rows of sums over the examples, each times v, and what flows into v from their sines."""
    rows = NEIGHBOURS @ x
    return rows * jnp.cos(rows * v)


def in_order(v, x):
    return jnp.sort(jnp.tanh(x * v), 0)


def beside_each(v, x):
    """All pairs of an example and a row that many have made."""
    layout = (((), ()), ((1,), (1,)))
    return lax.dot_general(jnp.tanh(x * v), in_order(v, x), layout).sum((1, 2))


def beside_some(v, x):
    """Rows in order, of which four meet one example each."""
    rows = in_order(v, x)
    return rows.sum(0) + jnp.sum(jnp.tanh(x * v)[:4] * rows[:4], 0)


def beside_two(v, x):
    """Rows in order, of which each meets two examples."""
    rows, own = in_order(v, x), jnp.tanh(x * v)
    return rows.sum(0) + jnp.sum(own * rows, 0) + jnp.sum(own * rows[::-1], 0)


def along_two(v, x):
    """A constant that meets the examples along two dimensions, and is summed along one of them."""
    own = jnp.tanh(x * v)
    constant = jnp.broadcast_to(own.max(0), (B, B, 3))
    met = jnp.sum(own[:, None] * constant, (0, 1)) + jnp.sum(own[None] * constant, (0, 1))
    return met + constant.sum(0)


def similarities_in_order(v, x):
    """Of each example its similarities to all, in order: whose each is, is not known."""
    own = jnp.tanh(x * v)
    return jnp.sum(own[:, None] * jnp.sort(own @ own.T, 1)[..., None], (0, 1))


# Rows that are summed as the gradient of v, and may be the examples' own.
def laid_out(through):
    """What flows into v, where each example meets all rows of sums of the examples, and v."""

    def loss(v, x):
        return jnp.sum(jnp.tanh(x[:, None] * through(NEIGHBOURS @ x + v, v)[None]))

    return jax.grad(loss)


LOST = {
    "a row for each": lambda v, x: spread(v, x).sum(0),
    "in windows": lambda v, x: lax.reduce_window(
        spread(v, x), 0.0, lax.add, (B, 1), (1, 1), "VALID"
    )[0],
    "in a loop": lambda v, x: lax.fori_loop(0, 2, lambda _, s: s + spread(v, x).sum(0), V * 0),
    "carried by a loop": lambda v, x: lax.fori_loop(
        0, 2, lambda _, s: jnp.sin(s), spread(v, x)
    ).sum(0),
    "in a branch": lambda v, x: lax.cond(
        v[0] > 0, lambda: spread(v, x).sum(0), lambda: jnp.zeros(3)
    ),
    "scaled behind": lambda v, x: 2 * spread(v, x).sum(0) * v,
    "of a call": lambda v, x: jnp.sin(spread(v, x)).sum(0),
    "rows of their own": lambda v, x: jnp.tanh((x - x.mean(0)) * v)[:, 0],
    "rows of those that meet": lambda v, x: (jnp.tanh(x * v) - jnp.tanh(x * v).mean(0))[:, 0],
    "similarities": lambda v, x: jnp.tanh((x * v) @ (x * v).T),
    "cumulated, then added": lambda v, x: jnp.sort(jnp.tanh(x * v), 0).sum(0),
    "sums of all before": lambda v, x: jnp.cumsum(jnp.tanh(x * v), 0).sum(0),
    "the largest of neighbours": lambda v, x: lax.reduce_window(
        jnp.tanh(x * v), -jnp.inf, lax.max, (2, 1), (1, 1), "VALID"
    ).sum(0),
    "one sum, for each place": lambda v, x: jnp.sum(
        jnp.broadcast_to(jnp.tanh(x * v).sum(0), (B, 3)), 0
    ),
    "sums of neighbours": lambda v, x: neighbours(v, x).sum(0),
    "sums of neighbours, in windows": lambda v, x: lax.reduce_window(
        neighbours(v, x), 0.0, lax.add, (B, 1), (1, 1), "VALID"
    )[0],
    "beside each": beside_each,
    "beside each, along another dimension": laid_out(lambda rows, v: rows),
    "beside each, through a loop": laid_out(
        lambda rows, v: lax.fori_loop(0, 2, lambda _, rows: jnp.sin(rows), rows)
    ),
    "beside each, through a branch": laid_out(
        lambda rows, v: lax.cond(v[0] > 0, jnp.sin, lambda rows: rows, rows)
    ),
    "beside each, scaled behind": lambda v, x: 2 * v * beside_each(v, x),
    "beside each, in a branch": lambda v, x: lax.cond(
        v[0] > 0, lambda: beside_each(v, x), lambda: 0 * v
    ),
    "beside some": beside_some,
    "beside two": beside_two,
    "along two dimensions": along_two,
    "similarities in order": similarities_in_order,
}


@pytest.mark.parametrize("name", LOST)
def test_rows_that_may_be_the_examples_are_not_summed(name):
    assert any(reasons(LOST[name], V, X, contribution=True))


def test_calls_of_which_nothing_is_known_are_no_constants():
    text = """func.func @main(%w: tensor<f32>, %x: tensor<4xf32>) -> tensor<f32> {
  %b = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %h = stablehlo.multiply %x, %b : tensor<4xf32>
  %c = stablehlo.custom_call @unknown(%h) : (tensor<4xf32>) -> tensor<4xf32>
  %m = stablehlo.multiply %c, %h : tensor<4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] :
    (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %t : tensor<f32>
}"""
    assert any(reasons_in(text, {1: 0}, contribution=True))
