"""Loops until every example is done: what one is does not depend on how long the others go on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

KEYS = jax.random.split(jax.random.key(0), 5)
PARAMS = {
    "a": jax.random.normal(KEYS[0], (7, 5)),
    "r": jax.random.normal(KEYS[1], (5, 5)),
    "c": jax.random.normal(KEYS[2], (5, 4)),
}
X, Y = 3 * jax.random.normal(KEYS[3], (6, 7)), jax.random.normal(KEYS[4], (6, 4))


def layer(w, x, z):
    return jnp.tanh(0.3 * z @ w + x)


def iterate(update, start):
    def going(state):
        return (state[1] > 1e-6) & (state[2] < 50)

    def step(state):
        new = update(state[0])
        return new, jnp.max(jnp.abs(new - state[0])), state[2] + 1

    return lax.while_loop(going, step, (start, 1.0, 0))[0]


@jax.custom_vjp
def fixed_point(w, x):
    return iterate(lambda z: layer(w, x, z), jnp.zeros_like(x))


def forward(w, x):
    z = fixed_point(w, x)
    return z, (w, x, z)


def backward(saved, cotangent):
    _, vjp = jax.vjp(layer, *saved)
    return vjp(iterate(lambda u: cotangent + vjp(u)[2], cotangent))[:2]


fixed_point.defvjp(forward, backward)


def equilibrium(p, x, y):
    z = jax.vmap(fixed_point, (None, 0))(p["r"], x @ p["a"])
    return jnp.mean(jnp.sum((z @ p["c"] - y) ** 2, -1))


def halved(x):
    """The example halved until it is small, and how often that took."""
    return lax.while_loop(
        lambda s: jnp.sum(s[0] ** 2) > 1, lambda s: (s[0] / 2, s[1] + 1), (x, 0.0)
    )


def counted(p, x, y):
    small, times = jax.vmap(halved)(x)
    return jnp.mean(
        jnp.sum((jnp.tanh(small @ p["a"] @ p["r"]) * times[:, None] @ p["c"] - y) ** 2, -1)
    )


def element_by_element(p, x, y):
    """Every element of every example has a loop of its own, as a sampler by rejection has."""
    once = jax.vmap(
        lambda a: lax.while_loop(lambda s: s[0] ** 2 > 1, lambda s: (s[0] / 2, s[1] + 1), (a, 0.0))
    )
    small, times = jax.vmap(once)(x)
    return jnp.mean(
        jnp.sum((jnp.tanh(small @ p["a"] @ p["r"]) @ p["c"] * times.sum(-1)[:, None] - y) ** 2, -1)
    )


@pytest.mark.parametrize("loss", [equilibrium, counted, element_by_element])
def test_second_moment(loss):
    examples = jax.vmap(jax.grad(loss), (None, 0, 0))(PARAMS, X[:, None], Y[:, None])
    gradient, squares = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(
        PARAMS, X, Y
    )
    for name, g in examples.items():
        np.testing.assert_allclose(gradient[name], g.mean(0), atol=1e-5 * float(jnp.abs(g).max()))
        np.testing.assert_allclose(squares[name], (g**2).mean(0), atol=1e-5 * float((g**2).max()))


def together(w, x):
    """All examples go on until the last is done: each depends on the slowest."""
    return lax.while_loop(
        lambda s: jnp.any(jnp.sum(s[0] ** 2, -1) > 1),
        lambda s: (0.5 * jnp.tanh(s[0] @ w), s[1] + 1.0),
        (x, 0.0),
    )


@jax.custom_jvp
def slowest(w, x):
    return together(w, x)[0]


slowest.defjvp(
    lambda primals, tangents: (slowest(*primals), slowest(*primals) * jnp.sum(tangents[0]))
)


def test_unfrozen_examples_are_refused():
    def loss(p, x, y):
        return jnp.mean(jnp.sum((slowest(p["r"], x @ p["a"]) @ p["c"] - y) ** 2, -1))

    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(PARAMS, X, Y)


def until_the_first_is_done(w, x):
    """Each example keeps its carry once it is done, but none goes on after the first is."""

    def going(h):
        return jnp.sum(h**2, -1) > 1

    return lax.while_loop(
        lambda h: jnp.all(going(h)), lambda h: jnp.where(going(h)[:, None], 0.5 * h, h), x @ w
    )


def test_a_loop_until_the_first_example_is_done_is_refused():
    def loss(p, x, y):
        h = lax.stop_gradient(until_the_first_is_done(p["r"], x @ p["a"]))
        return jnp.mean(jnp.sum((h @ p["c"] - y) ** 2, -1))

    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(PARAMS, X, Y)
