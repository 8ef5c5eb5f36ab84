"""What a loss or statistic closes over: traced values are arguments of the rewritten module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
P = {"out": jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32)}


def loss(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["out"]) ** 2, -1)) + 1e-2 * jnp.sum(p["out"] ** 2)


def rows(p, x, loss=loss):
    return jax.vmap(lambda row: jax.grad(loss)(p, row[None]))(x)


def assert_close(actual, expected):
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-5, atol=1e-6), actual, expected
    )


def drawn(key):
    return jax.random.normal(key, (3,))


CLOSED_OVER = {
    "a number": (jnp.float32(3), lambda p, x, c: c * loss(p, x)),
    "an array": (jnp.arange(3.0), lambda p, x, c: loss(p, x + c)),
    "a key": (jax.random.key(1), lambda p, x, c: loss(p, x * drawn(c))),
    "a table beside constants": (
        jnp.eye(3),
        lambda p, x, c: loss(p, (x @ c)[:, np.array([2, 0, 1])] + np.arange(3.0)),
    ),
    "a flag": (jnp.bool_(True), lambda p, x, c: jnp.where(c, 2 * loss(p, x), loss(p, x))),
    "in a jitted function": (2.0, lambda p, x, c: jax.jit(lambda x: loss(p, c * x))(x)),
    "in a scan": (
        2.0,
        lambda p, x, c: jax.lax.scan(lambda s, w: (s + c * loss(p, w * x), None), 0.0, X[0])[0],
    ),
}


@pytest.mark.parametrize("kind", CLOSED_OVER)
def test_losses(kind):
    value, closing = CLOSED_OVER[kind]

    @jax.jit
    def step(p, x, c):
        return hs.value_and_grad(lambda p, x: closing(p, x, c), statistics=hs.second_moment())(p, x)

    def known(p, x):
        return closing(p, x, value)

    expected = jax.tree.map(lambda g: jnp.mean(g**2, 0), rows(P, X, known))
    assert_close(step(P, X, value), (jax.value_and_grad(known)(P, X), expected))


def test_a_clip_norm_for_every_step_without_compiling_anew():
    @jax.jit
    def step(p, x, c):
        return hs.grad(loss, statistics=hs.clipped_mean(c))(p, x)[1]

    for c in (0.1, 5.0):
        assert_close(step(P, X, c), hs.grad(loss, statistics=hs.clipped_mean(c))(P, X)[1])
    assert step._cache_size() == 1


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda c: hs.norms(ord=c), TypeError, "norms takes a ord that is known"),
        (lambda c: hs.mean_power(c), ValueError, "integer k"),
        (
            lambda c: hs.clipped_mean(c * jnp.ones(2)),
            ValueError,
            "one real number for max_norm, not float32",
        ),
        (
            lambda c: hs.polynomial([0, c * jnp.ones(2)]),
            ValueError,
            "one real number for a coefficient",
        ),
        (lambda c: hs.histogram(c), ValueError, "at least two increasing edges"),
        (
            lambda c: hs.mean_of(lambda g: jnp.abs(g) ** c, factorable=True),
            hs.Refusal,
            "leave factorable out",
        ),
    ],
)
def test_what_has_to_be_known(make, kind, said):
    with pytest.raises(kind, match=said):
        jax.jit(lambda c: hs.grad(loss, statistics=make(c))(P, X))(2.0)
