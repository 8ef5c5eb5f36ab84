"""Constants that reach some examples' rows, or some groups' sums, and not the others'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B, D = 4, 3
PARAMS = {
    "w": jnp.linspace(-1.0, 1.0, D),
    "v": jnp.linspace(0.2, 1.0, D),
    "c": jnp.array(0.5),
    "e": jnp.array([0.1, 0.2]),
}
X = jnp.sin(jnp.arange(B * D) ** 1.3).reshape(B, D)
K = jnp.array([1.0, 3.0])


def fit(p, x):
    return jnp.tanh(x @ p["w"]) ** 2


def in_groups(values):
    return values.reshape(2, 2).mean(1)


def update(rows, c):
    return jax.lax.dynamic_update_slice(rows, c[None], (0,))


def scanned(rows, c):
    return jax.lax.scan(lambda carry, row: (0.0, row + carry), c, rows)[1]


def looped(rows, c):
    return jax.lax.fori_loop(0, 2, lambda i, rows: rows.at[i].add(c), rows)


ROWS = {
    "added to one": lambda rows, c: rows.at[0].add(c),
    "added to half": lambda rows, c: rows.at[:2].add(c),
    "beside one": lambda rows, c: rows + jnp.zeros(B).at[0].set(c),
    "an update": lambda rows, c: rows + update(jnp.zeros(B), c),
    "reshaped": lambda rows, c: rows.reshape(2, 2).at[0].add(c).ravel(),
    "reversed": lambda rows, c: rows[::-1].at[B - 1].add(c),
    "the first step": scanned,
    "some steps": looped,
    "twice": lambda rows, c: rows.at[jnp.array([0, 1, 2, 3, 0])].add(c),
    "weighted": lambda rows, c: rows.at[jnp.arange(B)].add(jnp.arange(B) * c),
    "weighted, to all": lambda rows, c: rows.at[:].add(jnp.arange(B) * c),
    "weighted, onto all": lambda rows, c: (jnp.arange(B) * c).at[:].add(rows),
    "repeated": lambda rows, c: rows + jnp.repeat(jnp.zeros(2).at[0].set(c), 2),
}
GROUPS = {
    "weighted": lambda p, x: in_groups(fit(p, x)) + K * p["c"],
    "added to one": lambda p, x: in_groups(fit(p, x)).at[0].add(p["c"]),
    "a row each": lambda p, x: in_groups(fit(p, x) + 0 * p["e"].sum()) + p["e"],
    "vmapped": lambda p, x: jax.vmap(lambda x, k: jnp.mean(fit(p, x)) + k * p["c"])(
        x.reshape(2, 2, D), K
    ),
    "segments": lambda p, x: (
        jax.ops.segment_sum(fit(p, x), jnp.array([0, 0, 1, 1]), 2) + K * p["c"]
    ),
    "by a matrix": lambda p, x: (
        jnp.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]) @ fit(p, x) + K * p["c"]
    ),
    "picked": lambda p, x: (in_groups(fit(p, x)) + p["c"])[jnp.array([0, 0, 1])],
    "two heads": lambda p, x: (
        jnp.tanh((x @ p["w"]).reshape(2, 2) + p["e"][:, None])
        + (x @ p["v"]).reshape(2, 2)
        + p["e"][:, None]
    ),
}


def refused(loss):
    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(PARAMS, X)
    assert refusal.value.where.startswith(__file__)


@pytest.mark.parametrize("name", ROWS)
def test_a_constant_in_some_rows_is_refused(name):
    refused(lambda p, x: jnp.mean(ROWS[name](fit(p, x), p["c"])))


@pytest.mark.parametrize("name", GROUPS)
def test_a_constant_of_some_groups_is_refused(name):
    refused(lambda p, x: jnp.mean(GROUPS[name](p, x)))


def of_groups(p, x):
    return jax.vmap(lambda rows: jax.grad(penalised)(p, rows))(x.reshape(2, 2, D))


def penalised(p, x):
    return jnp.mean(fit(p, x)) + 0.05 * sum(jnp.sum(leaf**2) for leaf in p.values())


PICKED = {
    "weighted": lambda g: (K[(...,) + (None,) * (g.ndim - 1)] * g).mean(0),
    "added up": lambda g: jnp.cumsum(g, 0).mean(0),
    "one by one": lambda g: 0.1 * g[0] + 0.9 * g[1],
}


@pytest.mark.parametrize("name", PICKED)
def test_groups_gradients_weighted_otherwise_are_refused(name):
    def made(p, x):
        return jax.tree.map(PICKED[name], of_groups(p, x))

    with pytest.raises(hs.Refusal):
        hs.rewrite(made, batch_argnums=1, statistics=hs.norms())(PARAMS, X)


def test_a_term_with_a_constant_put_into_a_row_is_refused():
    def made(w, x):
        rows = jnp.zeros((B, D))
        for i, k in enumerate([1.0, 0.0, 0.0, 0.0]):
            term = jax.grad(lambda w, i=i: jnp.tanh(x[i] @ w) ** 2)(w)
            rows = rows.at[i].set(term + k * w if k else term)
        return rows.mean(0)

    with pytest.raises(hs.Refusal, match="each of them gets its share"):
        hs.rewrite(made, batch_argnums=1, statistics=hs.norms())(PARAMS["w"], X)


TOKENS = jnp.sin(jnp.arange(B * 5 * D) ** 1.1).reshape(B, 5, D)
SHARED = {
    "a token for all": lambda p, x: x.at[:, 0].set(p["w"]),
    "a token by update": lambda p, x: jax.lax.dynamic_update_slice(
        x, jnp.broadcast_to(p["w"], (B, 1, D)), (0, 1, 0)
    ),
    "added to each row": lambda p, x: x.at[jnp.arange(B)].add(p["w"]),
    "at a place of each": lambda p, x: x.at[jnp.arange(B), jnp.arange(B)].set(p["w"]),
    "group means": lambda p, x: x.reshape(2, 2, 5, D) + p["w"],
    "two chunks": lambda p, x: jnp.concatenate([x[:2] + p["w"], x[2:] + p["w"]]),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_all_examples_get_is_exact(name):
    penalty = 0.0 if name in ("two chunks", "at a place of each") else 0.1

    def loss(p, x):
        each = jnp.tanh(SHARED[name](p, x).reshape(B, 5, D) @ p["v"])
        return jnp.mean(each) + penalty * jnp.sum(p["w"] ** 2)

    def one(p, b):
        number = jnp.zeros(B).at[b].set(B)
        each = jnp.tanh(SHARED[name](p, TOKENS).reshape(B, 5, D) @ p["v"])
        return jnp.mean(each.mean(1) * number) + penalty * jnp.sum(p["w"] ** 2)

    found = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(PARAMS, TOKENS)[1]
    for b in range(B):
        for key, wanted in jax.grad(one)(PARAMS, b).items():
            np.testing.assert_allclose(found[key][b], wanted, rtol=1e-4, atol=1e-6)


def test_decay_of_a_parameter_with_the_size_of_the_batch_is_shared():
    square = jnp.linspace(-1.0, 1.0, B * B).reshape(B, B)
    rows = jnp.sin(jnp.arange(B * B) ** 1.2).reshape(B, B)

    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w)) + 0.1 * jnp.sum(w**2)

    found = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(square, rows)[1]
    wanted = [jax.grad(loss)(square, rows[b : b + 1]) for b in range(B)]
    np.testing.assert_allclose(found, jnp.stack(wanted), rtol=1e-5, atol=1e-6)


def losses_of(loss):
    found = hs.value_and_grad(loss, batch_argnums=1, statistics=hs.per_example_losses())
    return found(PARAMS, X)[1]


def test_losses_with_constants_of_groups_are_refused():
    def loss(p, x):
        one, two = jnp.mean(fit(p, x[:2])) + 1.0, jnp.mean(fit(p, x[2:])) + 3.0
        return (one + two) / 2

    with pytest.raises(hs.Refusal):
        losses_of(loss)
