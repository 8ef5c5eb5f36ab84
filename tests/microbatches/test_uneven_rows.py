"""Uneven rows: examples that have more rows than others, beside constants; and sums of data that
are read in two ways.

A constant in three rows of one example and in one of another is theirs in these parts, or nobody's:
no gradient says which. What examples alone bring is theirs, however often.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D = 4, 3
DRAW = np.random.default_rng(0)
X = np.float32(DRAW.normal(size=(B, D)))
PARAMS = {"w": np.float32(DRAW.normal(size=D)), "b": np.float32(0.3)}
TWICE, ALL_TWICE = np.array([0, 0, 1, 2, 3]), np.array([0, 1, 2, 3, 3, 2, 1, 0])
PADDING = np.full((1, D), 0.7, np.float32)
MORE, UNEVEN, TERM = "more rows here than others", "its share of it", "a constant made of the whole"


def head(params, rows):
    return rows @ params["w"] + params["b"]


def drawn(rows):
    return lambda params, x: jnp.mean(head(params, x[rows]))


def once_more(params, x):
    return jnp.mean(head(params, jnp.concatenate([x, x[:1]])))


def penalised(params, x):
    """The penalty on b may be in each of the five rows beside."""
    own = jnp.mean(jnp.cos(x.sum(1) * params["b"])) + params["b"] ** 2
    return own + jnp.mean(jnp.sin(x[TWICE] @ params["w"]))


def padded(rows, padding, f=jnp.sin):
    """A row of padding behind the first of these rows."""

    def loss(params, x):
        own = x[np.array(rows)]
        row = jnp.broadcast_to(padding, (1, D))
        return jnp.mean(f(jnp.concatenate([own[:1], row, own[1:]]) @ params["w"]))

    return loss


def groups_of_three(params, x):
    """The second group has an example twice, the first one padding."""
    groups = jnp.stack([jnp.concatenate([x[:2], PADDING]), x[np.array([2, 3, 3])]])
    return jnp.mean(jnp.sin(groups @ params["w"]))


def scaled(params, x):
    """The mean of data is a constant of the batch for w, and the gradient of b."""
    return jnp.mean(x**2) * jnp.mean(head(params, x))


REFUSED = {
    "drawn twice": (drawn(TWICE), MORE),
    "once more": (once_more, MORE),
    "a penalty beside": (penalised, MORE),
    "padding among rows": (padded([0, 1, 1, 2, 3], PADDING), UNEVEN),
    "padding of a linear loss": (padded([0, 1, 1, 2, 3], PADDING, lambda h: h), UNEVEN),
    "padding in a group": (groups_of_three, UNEVEN),
    "a mean of data": (scaled, TERM),
}


def of_sines(params, x):
    return jnp.mean(jnp.sin(x[TWICE] @ params["w"]))


def added_apart(params, x):
    """Each mean of data is read in one way alone."""
    return jnp.mean(x**2) * jnp.mean(x @ params["w"]) + jnp.mean(params["b"] * x)


def gradients(loss):
    f = hs.grad(loss, batch_argnums=(1,), statistics=hs.per_example())
    return jax.tree.map(np.asarray, f(PARAMS, X))


@pytest.mark.parametrize("name", REFUSED)
def test_whose_constants_are_is_not_shown(name):
    loss, why = REFUSED[name]
    with pytest.raises(hs.Refusal, match=why):
        gradients(loss)


def test_padding_by_zeros_brings_nothing():
    """What is multiplied with the cotangents is zero in it."""
    rows = [0, 1, 1, 2, 3]
    _, found = gradients(padded(rows, 0.0))
    terms = np.cos(X @ PARAMS["w"])[:, None] * X
    np.testing.assert_allclose(
        found["w"], terms * np.bincount(rows)[:, None] * B / 6, rtol=1e-5, atol=1e-6
    )


def taken(rows):
    return lambda params, x, at: jnp.sum(head(params, rows(x, at))) / B


def by_step(params, x, at):
    return lax.scan(lambda s, i: (s + jnp.sum(head(params, x[i])), None), 0.0, at)[0] / B


def the_last(params, x, at):
    """What a loop carries is another example's at each step."""
    last = lax.scan(lambda _, i: (x[i], None), jnp.zeros(D), jnp.arange(B))[0]
    return head(params, last)


# Rows of which only a run tells whose they are.
UNSEEN = {
    "rows": taken(lambda x, at: x[at]),
    "one row": taken(lambda x, at: x[at[0]]),
    "some rows in order": taken(lambda x, at: lax.dynamic_slice_in_dim(x, at[0], 2)),
    "rows in one order or the other": taken(lambda x, at: jnp.where(at[:, None] > 1, x, x[::-1])),
    "one of two rows": taken(lambda x, at: lax.cond(at[0] > 1, lambda: x[0], lambda: x[1])),
    "rows of which one is written over": taken(
        lambda x, at: lax.dynamic_update_slice(x, x[:1], (at[0], 0))
    ),
    "the rows of a loop's steps": by_step,
    "the last row of a loop": the_last,
}


@pytest.mark.parametrize("name", UNSEEN)
def test_rows_that_only_a_run_tells_leave_constants_to_nobody(name):
    f = hs.grad(UNSEEN[name], batch_argnums=(1,), statistics=hs.per_example())
    with pytest.raises(hs.Refusal, match="equal share of it is not shown") as refused:
        f(PARAMS, X, np.array([0, 0, 1, 2]))
    assert "['b']" in str(refused.value)


ONES = jnp.ones((B, D))


def beside(rows):
    """A mean over rows, of one example and of nobody, beside one over all examples."""
    return lambda params, x, at: jnp.mean(jnp.sin(rows(x, at[0]) @ params["w"])) + once(params, x)


def once(params, x):
    return jnp.mean(jnp.sin(head(params, x)))


# Rows of which some are ones, or may be: what these bring is every example's, in equal parts.
AMONG_ONES = {
    "put at a known place": beside(lambda x, k: ONES.at[1].set(x[0])),
    "put anywhere": beside(lambda x, k: lax.dynamic_update_slice(ONES, x[:1], (k, 0))),
    "written anywhere": beside(lambda x, k: ONES.at[jnp.stack([k, k + 2])].set(x[0])),
    "laid beside": beside(lambda x, k: jnp.stack([x[:1], ONES[:1]], 1)),
    "looked up": beside(lambda x, k: jnp.concatenate([x[:1], ONES])[k]),
    "sliced": beside(lambda x, k: lax.dynamic_slice_in_dim(jnp.concatenate([x[:1], ONES]), k, 2)),
}


@pytest.mark.parametrize("name", AMONG_ONES)
def test_constants_in_place_of_one_examples_rows_are_not_its_own(name):
    f = hs.grad(AMONG_ONES[name], batch_argnums=(1,), statistics=hs.per_example())
    with pytest.raises(hs.Refusal, match=UNEVEN):
        f(PARAMS, X, np.array([1]))


ZEROS = beside(lambda x, k: lax.dynamic_update_slice(jnp.zeros((B, D)), x[:1], (k, 0)))


def test_zeros_in_place_of_one_examples_rows_bring_nothing():
    _, found = hs.grad(ZEROS, batch_argnums=(1,), statistics=hs.per_example())(
        PARAMS, X, np.array([1])
    )
    own = np.cos(X @ PARAMS["w"] + PARAMS["b"])[:, None] * X
    own[0] += np.cos(X[0] @ PARAMS["w"]) * X[0]
    np.testing.assert_allclose(found["w"], own, rtol=1e-5, atol=1e-6)


def test_what_examples_alone_bring_is_theirs_wherever_it_is_found():
    def loss(w, x, at):
        return taken(lambda x, at: x[at])({"w": w, "b": 0.0}, x, at)

    f = hs.grad(loss, batch_argnums=(1,), statistics=hs.per_example())
    _, found = f(PARAMS["w"], X, np.array([0, 0, 1, 2]))
    np.testing.assert_allclose(found, X * np.array([2, 1, 1, 0])[:, None], rtol=1e-6)


def test_an_even_number_of_rows_gives_even_shares():
    _, found = gradients(drawn(ALL_TWICE))
    np.testing.assert_allclose(found["w"], X, rtol=1e-6)
    np.testing.assert_allclose(found["b"], np.ones(B), rtol=1e-6)


def test_what_an_example_brings_counts_as_often_as_it_is_there():
    _, found = gradients(of_sines)
    own = np.cos(X @ PARAMS["w"])[:, None] * X
    times = np.array([2, 1, 1, 1])[:, None]
    np.testing.assert_allclose(found["w"], B / 5 * times * own, rtol=1e-5)


def test_padding_beside_examples_is_nobodys():
    _, found = gradients(padded([0, 1, 2, 3], PADDING))
    own = np.cos(X @ PARAMS["w"])[:, None] * X
    nobodys = np.cos(PADDING @ PARAMS["w"])[:, None] * PADDING
    np.testing.assert_allclose(found["w"], (B * own + nobodys) / 5, rtol=1e-5)


def test_sums_of_data_that_are_read_apart():
    _, found = gradients(added_apart)
    np.testing.assert_allclose(found["w"], np.mean(X**2) * X, rtol=1e-5)
    np.testing.assert_allclose(found["b"], X.mean(1), rtol=1e-5, atol=1e-7)
