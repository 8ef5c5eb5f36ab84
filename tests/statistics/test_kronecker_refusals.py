"""Kronecker factors that are refused: the line of the reason, and the way out, which works."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from tests.statistics.test_kronecker import (
    DENSE,
    IDS,
    ROWS,
    ROWS_OF_X,
    B,
    D,
    F,
    T,
    draw,
    held,
    squares,
)


def tied(p, ids):
    return jnp.mean(jnp.tanh(p[ids]) @ p.T)


def decayed(w, x):
    return jnp.mean(jnp.tanh(x @ w)) + jnp.sum(w**2)


def alternating(w, x):
    return jnp.mean(jnp.tanh(jnp.einsum("bde,hdfe->bhf", x, w)))


def in_part(w, x):
    return jnp.mean(jnp.tanh(x @ w[:, :2]))


def there_and_back(w, x):
    return jnp.mean(jnp.tanh(x @ w) @ w.T)


def on_both_sides(w, x):
    """A vector that is added, and multiplied by."""
    return jnp.mean(jnp.tanh(x + w) @ w)


REFUSED = {
    "a kernel and its transpose": (there_and_back, draw(D, D), ROWS_OF_X),
    "a vector, added and contracted": (on_both_sides, draw(D), ROWS_OF_X),
    "a table that scores": (tied, draw(ROWS, D), IDS),
    "decay": (decayed, draw(D, F), ROWS_OF_X),
    "axes that alternate": (alternating, draw(2, D, F, T), draw(B, D, T)),
    "a part of a kernel": (in_part, draw(D, F), ROWS_OF_X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_sum_is_refused(name):
    loss, w, x = REFUSED[name]
    f = hs.grad(loss, statistics=hs.kronecker_factors())
    with pytest.raises(
        hs.Refusal, match=r"(?s)test_kronecker_refusals.py:\d+.*sum of outer products"
    ):
        f(w, x)


def penalised(w, x):
    errors = jnp.mean(jnp.tanh(x @ w))
    penalty = 0.1 * jnp.sum(w**2)
    return errors + penalty


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_penalty_is_refused_at_its_own_line():
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(penalised, statistics=hs.kronecker_factors())(draw(D, F), ROWS_OF_X)
    assert refused.value.where.endswith(
        f"test_kronecker_refusals.py:{line_of(penalised, 'penalty =')}"
    )
    assert "rests on no example" in refused.value.why
    assert "weight decay, to the optimizer" in refused.value.help


def of_one(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def looked_up_by_one(w, ids):
    return jnp.sum(jnp.tanh(w[ids]) ** 2)


def by_vmap(one, w, xs):
    return jnp.mean(jax.vmap(jax.grad(one), (None, 0))(w, xs), 0)


def by_map(one, w, xs):
    return jnp.mean(jax.lax.map(lambda x: jax.grad(one)(w, x), xs), 0)


def by_weights(one, w, xs):
    return jnp.tensordot(
        jnp.full(len(xs), 1 / len(xs)), jax.vmap(jax.grad(one), (None, 0))(w, xs), 1
    )


def test_a_loop_of_python_over_single_examples_has_no_terms_without_examples():
    each = lambda w, xs: (jax.grad(of_one)(w, xs[0]) + jax.grad(of_one)(w, xs[1])) / 2  # noqa: E731
    f = hs.rewrite(each, batch_argnums=1, statistics=hs.kronecker_factors())
    with pytest.raises(hs.Refusal, match="is single examples' alone") as refused:
        f(draw(D, F), draw(2, T, D))
    assert "the gradient of the examples' mean loss" in refused.value.help


def clipped(one, w, xs):
    gradients = jax.vmap(jax.grad(one), (None, 0))(w, xs)
    norms = jax.vmap(jnp.linalg.norm)(gradients)
    return jnp.mean(gradients / jnp.maximum(norms, 1)[:, None, None], 0)


@pytest.mark.parametrize("added_up", [by_vmap, by_map, by_weights, clipped])
@pytest.mark.parametrize("one", [of_one, looked_up_by_one])
def test_sums_of_gradients_that_the_program_makes_one_by_one_are_refused(one, added_up):
    """They have the form of a table that is added as it is, whose every row is looked up."""
    w, xs = (draw(D, F), draw(B, T, D)) if one is of_one else (draw(ROWS, D), IDS)
    f = hs.rewrite(
        lambda w, xs: added_up(one, w, xs), batch_argnums=1, statistics=hs.kronecker_factors()
    )
    with pytest.raises(hs.Refusal, match="makes each example's own") as refused:
        f(w, xs)
    assert "the gradient of the examples' mean loss" in refused.value.help


def tied_apart(looked_up, scores, ids):
    return jnp.mean(jnp.tanh(looked_up[ids]) @ scores.T)


def test_of_a_tied_table_each_use_as_a_parameter_is_the_way_out():
    w, ask = draw(ROWS, D), {"statistics": hs.kronecker_factors()}
    with pytest.raises(hs.Refusal, match="two ways that have no factors in common") as refused:
        hs.grad(tied, **ask)(w, IDS)
    assert "as in loss(w, w)" in refused.value.help
    both = hs.grad(tied_apart, argnums=(0, 1), batch_argnums=2, **ask)(w, w, IDS)[1]
    for i, name in enumerate(("looked_up", "scores")):
        fixed = lambda own, ids, i=i: tied_apart(*((own, w), (w, own))[i], ids)  # noqa: E731
        held({name: both[i]}, {name: hs.grad(fixed, **ask)(w, IDS)[1]})


def test_complex_gradients_are_refused_as_such():
    loss = lambda w, x: jnp.mean(jnp.sum(jnp.abs(x @ w) ** 2, -1))  # noqa: E731
    f = hs.grad(loss, statistics=hs.kronecker_factors())
    with pytest.raises(hs.Refusal, match="is complex"):
        f(jnp.ones((3, 2), complex), jnp.ones((4, 3)))


def test_wrong_use_says_what_to_write():
    with pytest.raises(ValueError, match="'expand' or 'reduce', not 'flat'"):
        hs.kronecker_factors("flat")
    with pytest.raises(ValueError, match="at least 2 examples; the batch has 1"):
        hs.grad(squares, statistics=hs.kronecker_factors())(DENSE, ROWS_OF_X[:1])
