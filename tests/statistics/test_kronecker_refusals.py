"""Kronecker factors that are refused: the line of the reason, and the way out, which works."""

import inspect

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


def test_wrong_use_says_what_to_write():
    with pytest.raises(ValueError, match="'expand' or 'reduce', not 'flat'"):
        hs.kronecker_factors("flat")
    with pytest.raises(ValueError, match="at least 2 examples; the batch has 1"):
        hs.grad(squares, statistics=hs.kronecker_factors())(DENSE, ROWS_OF_X[:1])
