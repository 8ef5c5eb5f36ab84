"""A sum loss that adds the same for each row adds it for padding, too: the real have no share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B = 3
X = jnp.sin(jnp.arange(6.0)).reshape(B, 2)
REAL = jnp.array([1, 0, 1])
PARAMS = {"w": jnp.eye(2) + 0.1, "b": jnp.ones(())}


def of_rows(p, x):
    return jnp.sum(jnp.tanh(x @ p["w"]), -1)


def linear(p, x, real):
    return jnp.sum(of_rows(p, x) + p["b"])


def with_a_penalty_each(p, x, real):
    return jnp.sum(of_rows(p, x) + jnp.sum(p["w"] ** 2) + p["b"] ** 2)


def mapped(p, x, real):
    return jnp.sum(jax.lax.map(lambda x: of_rows(p, x) + p["b"], x))


def contracted(p, x, real):
    return jnp.ones(B) @ (of_rows(p, x) + p["b"])


def masked(p, x, real):
    return jnp.sum(real * (of_rows(p, x) + p["b"] + jnp.sum(p["w"] ** 2)))


def with_a_penalty(p, x, real):
    return jnp.sum(real * of_rows(p, x)) + jnp.sum(p["w"] ** 2) + p["b"]


def asked(loss, **options):
    how = {"batch_argnums": (1, 2), "loss_reduction": "sum", "is_real": REAL}
    return hs.grad(loss, statistics=hs.per_example(), **(how | options))(PARAMS, X, REAL)[1]


def test_terms_of_padding_in_parts_are_refused():
    x, real = jnp.sin(jnp.arange(8.0)).reshape(4, 2), jnp.array([1, 0, 1, 1])

    def in_parts(p, x, real):
        return jnp.sum(of_rows(p, x).reshape(2, 2) + p["b"])

    def by_steps(p, x, real):
        parts = jax.lax.map(lambda x: jnp.sum(of_rows(p, x) + p["b"]), x.reshape(2, 2, 2))
        return jnp.sum(parts)

    for loss in (in_parts, by_steps):
        how = {"batch_argnums": (1, 2), "loss_reduction": "sum", "is_real": real}
        with pytest.raises(hs.Refusal, match="those of padding among them"):
            hs.grad(loss, statistics=hs.per_example(), **how)(PARAMS, x, real)


@pytest.mark.parametrize("mixing", ["refuse", "contribution"])
@pytest.mark.parametrize("loss", [linear, with_a_penalty_each, mapped, contracted])
def test_terms_of_padding_are_refused(loss, mixing):
    with pytest.raises(hs.Refusal, match="those of padding among them") as refused:
        asked(loss, on_mixing=mixing)
    assert "multiply each example's loss by its flag" in refused.value.help


def test_a_loss_that_leaves_padding_out_has_none():
    found = asked(masked)
    one = jax.vmap(lambda x, real: jax.grad(masked)(PARAMS, x[None], real[None]))(X, REAL)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, one)


def test_what_is_added_once_is_shared_by_the_real():
    found = asked(with_a_penalty)
    np.testing.assert_allclose(found["b"], REAL / 2)


def test_without_padding_each_row_has_its_own():
    np.testing.assert_allclose(asked(linear, is_real=None)["b"], np.ones(B))
