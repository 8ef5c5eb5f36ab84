"""Rows of parameters, draws of groups, gradients by the batch: an example's where that shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B = 4
X, ROWS = (jnp.asarray(np.random.default_rng(i).normal(size=(B, 3)), jnp.float32) for i in (0, 1))


def total(x, e):
    return jnp.sum(x + e, -1)


def energy(x, e):
    return jnp.sum((x + e) ** 2, -1)


def whole(each):
    return lambda e, x: jnp.mean(each(x, e))


def mapped(each):
    return lambda e, x: jnp.mean(lax.map(lambda pair: each(*pair), (x, e)))


def scanned(each):
    return lambda e, x: lax.scan(lambda s, pair: (s + each(*pair), None), 0.0, (x, e))[0] / B


def microbatched(each):
    return lambda e, x: jnp.mean(
        lax.map(lambda pair: each(*pair), (x.reshape(2, 2, -1), e.reshape(2, 2, -1)))
    )


def flat(each):
    return lambda e, x: jnp.mean(each(x.reshape(-1, 1), e.reshape(-1, 1))) * 3


FORMS = {f.__name__: f for f in (whole, mapped, scanned, microbatched, flat)}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_row_that_its_example_reaches_is_that_examples(form):
    gradient, found = hs.grad(form(energy), statistics=hs.per_example())(ROWS, X)
    expected = jnp.eye(B)[:, :, None] * 2 * (X + ROWS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected.mean(0), rtol=1e-5, atol=1e-6)


def found_or_refused(loss, params):
    """Each example's gradient, or the refusal."""
    try:
        return hs.grad(loss, statistics=hs.per_example())(params, X)[1], None
    except hs.Refusal as refusal:
        return None, refusal


@pytest.mark.parametrize(
    "form", [*FORMS.values(), lambda each: lambda e, x: whole(each)(e[::-1], x)]
)
def test_a_row_that_no_example_reaches_is_its_examples_or_refused(form):
    found, refusal = found_or_refused(form(total), ROWS)
    if refusal is not None:
        assert "batch arg" in refusal.help
        return
    expected = jnp.eye(B)[:, :, None] * jnp.ones_like(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_rows_passed_as_a_batch_argument_are_each_examples():
    """The way out that the refusal names, for the other parameters of such a loss."""
    found = hs.grad(
        lambda t, x, e: jnp.mean(total(t * x, e)), batch_argnums=(1, 2), statistics=hs.norms()
    )
    np.testing.assert_allclose(found(jnp.float32(2), X, ROWS)[1], jnp.abs(X.sum(1)), rtol=1e-5)


PLACES = jnp.asarray(np.random.default_rng(2).normal(size=(2 * B, 3)), jnp.float32)
# Rows of p [2 B, 3] that meet the examples behind an op that moves or mixes them.
MOVED = {
    "the first": lambda p: p[:B],
    "every other one": lambda p: p[::2],
    "reversed": lambda p: (PLACES[:B] * p[0])[::-1],
    "rolled": lambda p: jnp.roll(PLACES[:B] * p[0], 1, 0),
    "accumulated": lambda p: jnp.cumsum(PLACES[:B] * p[0], 0),
    "sorted": lambda p: jnp.sort(PLACES[:B] * p[0], 0),
    "padded": lambda p: jnp.pad((PLACES @ p[:3])[: B - 1], ((1, 0), (0, 0))),
    "in two pieces": lambda p: jnp.concatenate([PLACES[:1] * p[0], PLACES[5:8] * p[1]]),
    "from a computed place": lambda p: lax.dynamic_slice_in_dim(PLACES * p[0], 3, B),
    "products cut": lambda p: (PLACES @ p[:3])[:B],
}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", MOVED)
def test_moved_rows_are_refused_or_each_examples_own(name, beside):
    def each(p, x):
        return jnp.sum(jnp.tanh(x * p[0] if beside else x) + MOVED[name](p), -1)

    found, refusal = found_or_refused(lambda p, x: jnp.mean(each(p, x)), PLACES)
    if refusal is not None:
        assert "test_example_rows" in refusal.where
        return
    expected = jnp.stack([jax.grad(lambda p, b=b: each(p, X)[b])(PLACES) for b in range(B)])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


W = jnp.asarray(np.random.default_rng(3).normal(size=(3, 2)), jnp.float32)
FORMS_OF_GRADIENTS = {
    "as it is": lambda g: g,
    "scaled": lambda g: 2 * g,
    "with a dimension more": lambda g: g.reshape(B, 3, 1),
    "flat": lambda g: g.reshape(-1),
    "in parts": lambda g: g.reshape(2, B // 2, 3),
    "in bfloat16": lambda g: g.astype(jnp.bfloat16),
    "transposed": lambda g: g.T,
    "a column": lambda g: g[:, 0],
    "summed within the rows": lambda g: g.sum(1),
    "its magnitude": lambda g: jnp.sqrt(jnp.sum(g**2, 1)),
    "as complex": lambda g: g + 1j * g,
    "twice": lambda g: jnp.stack([g, g]),
}


def centred(w, x):
    return jnp.mean(jnp.tanh((x - x.mean(0)) @ w))


def own(w, x):
    return jnp.mean(jnp.tanh(x @ w))


def alone(b):
    """The gradient in example b's row, and zeros in the others: [B, 3]."""
    of_b = (jnp.arange(B) == b)[:, None]
    return jnp.where(of_b, jax.grad(own, 1)(W, X), 0)


@pytest.mark.parametrize("form", FORMS_OF_GRADIENTS.values(), ids=FORMS_OF_GRADIENTS.keys())
def test_a_mean_of_what_is_differentiated_is_refused(form):
    """No parameter is among the arguments, so that nothing else is trained."""

    def gradient(x):
        return form(jax.grad(centred, 1)(W, x))

    with pytest.raises(hs.Refusal, match="a sum over the examples"):
        hs.rewrite(gradient, batch_argnums=0, statistics=hs.per_example())(X)


@pytest.mark.parametrize("both", [(0, 1), (1, 0)])
def test_also_beside_a_gradient_of_parameters(both):
    with pytest.raises(hs.Refusal, match="a sum over the examples"):
        hs.grad(centred, both, batch_argnums=1, statistics=hs.second_moment())(W, X)


IN_ROWS = ["as it is", "in bfloat16", "transposed", "a column"]
ANYWHERE = ["flat", "in parts", "twice"]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", [*IN_ROWS, *ANYWHERE])
def test_rows_of_their_own_are_exact(name):
    """A mean's gradient has a B-th of each example's row, wherever that lies."""
    form = FORMS_OF_GRADIENTS[name]

    def gradient(w, x):
        return form(jax.grad(own, 1)(w, x))

    result, rows = hs.rewrite(gradient, batch_argnums=1, statistics=hs.per_example())(W, X)
    each = [form(B * alone(b)) for b in range(B)]
    np.testing.assert_array_equal(result, gradient(W, X))
    np.testing.assert_allclose(rows.astype(jnp.float32), jnp.stack(each), rtol=1e-2)


BESIDE_A_SUM = {"centred": lambda x: x - x.mean(0), "scaled": lambda x: x * x.sum(0)}


@pytest.mark.parametrize("rows", BESIDE_A_SUM.values(), ids=BESIDE_A_SUM.keys())
def test_rows_beside_a_sum_are_refused_where_nothing_tells_of_parameters(rows):
    asked = {"statistics": hs.per_example(), "gradients": lambda rows: rows}
    with pytest.raises(hs.Refusal, match="a sum over the examples"):
        hs.rewrite(rows, batch_argnums=0, **asked)(X)
