"""Loops and branches: statistics against one example at a time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.products import covering

B, STEPS, WIDTH = 5, 3, 4
STATISTICS = {"squares": hs.second_moment(), "tanh": hs.mean_of(jnp.tanh)}


def draw(shape, seed):
    return jax.random.normal(jax.random.key(seed), shape) / math.sqrt(shape[-1])


def stacked(width=WIDTH, steps=STEPS):
    return {"w": draw((steps, width, width), 0), "b": draw((steps, width), 1)}


def single(width=WIDTH):
    return {"w": draw((width, width), 0), "u": draw((width, width), 1), "t": jnp.float32(0.5)}


def features(width=WIDTH):
    return draw((B, width), 2)


def sequences(width=WIDTH, steps=STEPS):
    """[T, B, D]"""
    return draw((steps, B, width), 3)


def squares(h):
    """The mean over the examples [B, ..]."""
    return jnp.mean(jnp.sum(h**2, tuple(range(1, h.ndim))))


def layer(h, p):
    return jnp.tanh(h @ p["w"] + p["b"]), None


def layers(p, x):
    return squares(lax.scan(layer, x, p)[0])


def layers_reversed(p, x):
    return squares(lax.scan(layer, x, p, reverse=True)[0])


def layers_checkpointed(p, x):
    return squares(lax.scan(jax.checkpoint(layer), x, p)[0])


def layers_regularised_inside(p, x):
    def step(carry, q):
        return (layer(carry[0], q)[0], carry[1] + 0.1 * jnp.sum(q["w"] ** 2)), None

    h, penalty = lax.scan(step, (x, 0.0), p)[0]
    return squares(h) + penalty


def layers_cumulated(p, x):
    """The gradient of a step's parameter sums those of all later steps, in a carry that is written
    and stacked.
    """

    def step(carry, q):
        whole = 0.5 * carry[1] + q["w"]
        return (jnp.tanh(carry[0] @ whole + q["b"]), whole), None

    return squares(lax.scan(step, (x, jnp.eye(WIDTH)), p)[0][0])


def cell(p, h, xt):
    h = jnp.tanh(h @ p["w"] + xt @ p["u"])
    return h, h


def zeros(xs):
    return jnp.zeros(xs.shape[1:])


def recurrent(p, xs):
    return squares(lax.scan(lambda h, xt: cell(p, h, xt), zeros(xs), xs)[1].swapaxes(0, 1))


def recurrent_in_chunks(p, xs):
    inner = jax.checkpoint(lambda h, chunk: lax.scan(lambda h, xt: cell(p, h, xt), h, chunk))
    out = lax.scan(inner, zeros(xs), jnp.concatenate([xs, xs]).reshape(3, -1, *xs.shape[1:]))[1]
    return squares(out.reshape(-1, *xs.shape[1:]).swapaxes(0, 1))


def lstm(p, xs):
    def step(carry, xt):
        h, c = carry
        i, f, o, g = jnp.split(h @ p["w"] + xt @ p["u"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return squares(lax.scan(step, (zeros(xs), zeros(xs)), xs)[1].swapaxes(0, 1))


def branch_on_parameter(p, x):
    return squares(lax.cond(p["t"] > 0, lambda: jnp.tanh(x @ p["w"]), lambda: p["t"] * x @ p["u"]))


def branch_on_step(p, x):
    branches = [lambda h: h @ p["w"], lambda h: jnp.tanh(h @ p["u"]), lambda h: h]
    return squares(
        lax.scan(lambda h, i: (lax.switch(i, branches, h), None), x, jnp.array([2, 0, 1, 0]))[0]
    )


def associative(p, xs):
    decays = jax.nn.sigmoid(xs @ p["u"])
    whole = lax.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decays, xs @ p["w"])
    )
    return squares(whole[1].swapaxes(0, 1))


SEPARABLE = {
    **{
        f.__name__: (f, stacked(), features(), 0)
        for f in (layers, layers_reversed, layers_checkpointed, layers_regularised_inside)
    },
    "layers_cumulated": (layers_cumulated, stacked(), features(), 0),
    **{
        f.__name__: (f, single(), sequences(), 1)
        for f in (recurrent, recurrent_in_chunks, associative)
    },
    "lstm": (
        lstm,
        {"w": draw((WIDTH, 4 * WIDTH), 0), "u": draw((WIDTH, 4 * WIDTH), 1)},
        sequences(),
        1,
    ),
    "as many steps as examples": (recurrent, single(), sequences(steps=B), 1),
    **{f.__name__: (f, single(), features(), 0) for f in (branch_on_parameter, branch_on_step)},
}


def examples_of(gradient, params, x, axis):
    return jax.vmap(lambda b: gradient(params, lax.dynamic_slice_in_dim(x, b, 1, axis)))(
        jnp.arange(B)
    )


def assert_exact(gradient, params, x, axis, **options):
    """The gradient as it was, and every statistic, against the gradients of batches of one."""
    plain = jax.jit(lambda p, x: (gradient(p, x), examples_of(gradient, p, x, axis)))
    whole, examples = jax.tree.map(np.asarray, plain(params, x))
    found, statistics = hs.rewrite(
        gradient, batch_argnums=1, in_axes=axis, statistics=STATISTICS, **options
    )(params, x)
    expected = {
        "squares": jax.tree.map(lambda g: np.mean(g**2, 0), examples),
        "tanh": jax.tree.map(lambda g: np.mean(np.tanh(g), 0), examples),
    }
    for got, want in (
        (found, whole),
        *((statistics[name], expected[name]) for name in STATISTICS),
    ):
        for name in want:
            scale = np.abs(want[name]).max()
            np.testing.assert_allclose(
                got[name], want[name], rtol=0, atol=1e-5 * scale + 1e-8, err_msg=name
            )


@pytest.mark.parametrize(("loss", "params", "x", "axis"), SEPARABLE.values(), ids=SEPARABLE.keys())
def test_loops_and_branches_are_exact(loss, params, x, axis):
    assert_exact(jax.grad(loss), params, x, axis)


@pytest.mark.parametrize(
    ("strategy", "name"),
    covering(["lift", "loop"], ["layers", "layers_cumulated", "recurrent", "branch_on_step"]),
)
def test_every_strategy_is_exact(name, strategy):
    loss, params, x, axis = SEPARABLE[name]
    assert_exact(jax.grad(loss), params, x, axis, strategy=strategy)
