"""Gradients with respect to the batch: it is no data then, whatever their shape and type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B = 6
W, X = (
    jnp.asarray(np.random.default_rng(i).normal(size=s), jnp.float32)
    for i, s in enumerate([(3, 2), (B, 3)])
)
FORMS = {
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


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
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


@pytest.mark.parametrize("name", [*IN_ROWS, *ANYWHERE])
def test_rows_of_their_own_are_exact(name):
    """A mean's gradient has a B-th of each example's row, wherever that lies."""
    form = FORMS[name]

    def gradient(w, x):
        return form(jax.grad(own, 1)(w, x))

    result, rows = hs.rewrite(gradient, batch_argnums=1, statistics=hs.per_example())(W, X)
    each = [form(B * alone(b)) for b in range(B)]
    np.testing.assert_array_equal(result, gradient(W, X))
    np.testing.assert_allclose(rows.astype(jnp.float32), jnp.stack(each), rtol=1e-2)


def test_what_is_returned_beside_gradients_of_parameters_may_have_rows():
    """Logits, centred data, and a saliency that nobody asks for statistics of."""

    def outputs(w, x):
        logits = (x - x.mean(0)) @ w
        saliency = jax.grad(centred, 1)(w, x)
        return jax.grad(centred)(w, x), logits, x - x.mean(0), saliency

    asked = {"statistics": hs.per_example(), "gradients": lambda outputs: outputs[0]}
    f = hs.rewrite(outputs, batch_argnums=1, **asked)
    (gradient, *others), rows = f(W, X)
    constant = X.mean(0)
    each = jax.vmap(jax.grad(lambda w, e: jnp.mean(jnp.tanh((e - constant) @ w))), (None, 0))(W, X)
    np.testing.assert_allclose(rows, each, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, each.mean(0), rtol=1e-4, atol=1e-6)
    for made, expected in zip(others, outputs(W, X)[1:], strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)
    assert any("a sum of data" in reason.why for reason in f.explain(W, X).data)


BESIDE_A_SUM = {"centred": lambda x: x - x.mean(0), "scaled": lambda x: x * x.sum(0)}


@pytest.mark.parametrize("rows", BESIDE_A_SUM.values(), ids=BESIDE_A_SUM.keys())
def test_rows_beside_a_sum_are_refused_where_nothing_tells_of_parameters(rows):
    asked = {"statistics": hs.per_example(), "gradients": lambda rows: rows}
    with pytest.raises(hs.Refusal, match="a sum over the examples"):
        hs.rewrite(rows, batch_argnums=0, **asked)(X)
