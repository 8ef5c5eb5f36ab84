"""Loops and branches: statistics against one example at a time, and what rewritten loops carry."""

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


def layers_unrolled(p, x):
    return squares(lax.scan(layer, x, p, unroll=2)[0])


def layers_with_outputs(p, x):
    return squares(lax.scan(lambda h, q: (layer(h, q)[0], h), x, p)[1].swapaxes(0, 1))


def layers_tied_outside(p, x):
    return squares(lax.scan(layer, x, p)[0] @ p["w"][1])


def layers_regularised(p, x):
    return squares(lax.scan(layer, x, p)[0]) + 0.1 * jnp.sum(p["w"] ** 2)


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


def recurrent_reversed(p, xs):
    return squares(
        lax.scan(lambda h, xt: cell(p, h, xt), zeros(xs), xs, reverse=True)[1].swapaxes(0, 1)
    )


def recurrent_in_chunks(p, xs):
    inner = jax.checkpoint(lambda h, chunk: lax.scan(lambda h, xt: cell(p, h, xt), h, chunk))
    out = lax.scan(inner, zeros(xs), jnp.concatenate([xs, xs]).reshape(3, -1, *xs.shape[1:]))[1]
    return squares(out.reshape(-1, *xs.shape[1:]).swapaxes(0, 1))


def recurrent_tied_outside(p, xs):
    return squares(lax.scan(lambda h, xt: cell(p, h, xt), zeros(xs), xs)[0] @ p["w"])


def recurrent_with_decaying_weight(p, xs):
    def step(carry, xt):
        return (jnp.tanh(carry[0] @ carry[1] + xt), 0.5 * carry[1]), None

    return squares(lax.scan(step, (zeros(xs), p["w"]), xs)[0][0])


def recurrent_with_exchanged_weights(p, xs):
    def step(carry, xt):
        h, w, u = carry
        return (jnp.tanh(h @ w + xt), u, w), None

    return squares(lax.scan(step, (zeros(xs), p["w"], p["u"]), xs)[0][0])


def recurrent_with_shared_state(p, xs):
    def step(carry, xt):
        state = jnp.tanh(carry[1] @ p["u"])
        return (jnp.tanh(carry[0] @ p["w"] + xt + state), state), None

    return squares(lax.scan(step, (zeros(xs), jnp.ones(WIDTH)), xs)[0][0])


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


def weight_power(p, x):
    return squares(x @ lax.fori_loop(0, 3, lambda _, m: m @ p["w"], jnp.eye(WIDTH)))


SEPARABLE = {
    **{
        f.__name__: (f, stacked(), features(), 0)
        for f in (
            layers,
            layers_reversed,
            layers_checkpointed,
            layers_unrolled,
            layers_with_outputs,
        )
    },
    **{
        f.__name__: (f, stacked(), features(), 0)
        for f in (
            layers_tied_outside,
            layers_regularised,
            layers_regularised_inside,
            layers_cumulated,
        )
    },
    **{
        f.__name__: (f, single(), sequences(), 1)
        for f in (
            recurrent,
            recurrent_reversed,
            recurrent_in_chunks,
            recurrent_tied_outside,
            associative,
        )
    },
    **{
        f.__name__: (f, single(), sequences(), 1)
        for f in (
            recurrent_with_decaying_weight,
            recurrent_with_exchanged_weights,
            recurrent_with_shared_state,
        )
    },
    "lstm": (
        lstm,
        {"w": draw((WIDTH, 4 * WIDTH), 0), "u": draw((WIDTH, 4 * WIDTH), 1)},
        sequences(),
        1,
    ),
    "as many steps as examples": (recurrent, single(), sequences(steps=B), 1),
    "as many layers as examples": (layers, stacked(steps=B), features(), 0),
    "one layer": (layers, stacked(steps=1), features(), 0),
    **{
        f.__name__: (f, single(), features(), 0)
        for f in (branch_on_parameter, branch_on_step, weight_power)
    },
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


# --- what the rewritten module holds


# --- where a step's slice is written


def stacking(index, trips):
    """A gradient function whose step i writes the gradient of one slice at index(i)."""

    def gradient(p, x):
        def step(i, whole):
            update = x.T @ jnp.tanh(x @ p["w"][0] * (i + 1)) / len(x)
            return lax.dynamic_update_index_in_dim(whole, update, index(i), 0)

        return {"w": lax.fori_loop(0, trips, step, jnp.zeros_like(p["w"]))}

    return gradient


EACH_ONCE = {
    "i": stacking(lambda i: i, 6),
    "N - 1 - i": stacking(lambda i: 5 - i, 6),
    "i - N, counted from the end": stacking(lambda i: i - 6, 6),
    "halves exchanged": stacking(lambda i: jnp.where(i < 3, i + 3, i - 3), 6),
}
NOT_EACH_ONCE = {
    "min(i, 3)": stacking(lambda i: jnp.minimum(i, 3), 6),
    "i + 1, which clamps": stacking(lambda i: i + 1, 6),
    "fewer steps than slices": stacking(lambda i: i, 5),
    "twice around": stacking(lambda i: i % 6, 12),
}


def six_slices(width):
    return {"w": draw((6, width, width), 0)}


@pytest.mark.parametrize(
    "gradient", [*EACH_ONCE.values(), *NOT_EACH_ONCE.values()], ids=[*EACH_ONCE, *NOT_EACH_ONCE]
)
def test_slices_are_exact_wherever_they_are_written(gradient):
    assert_exact(gradient, six_slices(WIDTH), features(), 0)


def adding(carry, update):
    return carry + update


def decaying(carry, update):
    return 0.5 * carry + update


def by_hand(combined, going=lambda p, i: i < 4):
    """A gradient function that accumulates for itself."""

    def gradient(p, x):
        def step(carry):
            i, total = carry
            return i + 1, combined(total, x.T @ jnp.tanh(x @ p["w"] * i) / len(x))

        start = (jnp.int32(0), jnp.ones_like(p["w"]))
        return {"w": lax.while_loop(lambda carry: going(p, carry[0]), step, start)[1]}

    return gradient


def stack_that_is_read(p, x):
    """What a step writes rests on what the first one wrote."""

    def step(i, whole):
        return whole.at[i].set(x.T @ jnp.tanh(x @ p["w"][i]) / len(x) + 0.5 * whole[0])

    return {"w": lax.fori_loop(0, STEPS, step, jnp.zeros_like(p["w"]))}


def at_most_the_trace(p, i):
    return i.astype(jnp.float32) < 3 + jnp.abs(jnp.trace(p["w"]))


BY_HAND = {
    "a sum": (by_hand(adding), single()),
    "a decayed sum": (by_hand(decaying), single()),
    "as many steps as the parameters say": (by_hand(adding, at_most_the_trace), single()),
    "a decayed sum of as many": (by_hand(decaying, at_most_the_trace), single()),
    "a stack that is read": (stack_that_is_read, stacked()),
}


@pytest.mark.parametrize(("gradient", "params"), BY_HAND.values(), ids=BY_HAND)
def test_accumulations_by_hand_are_exact(gradient, params):
    assert_exact(gradient, {"w": params["w"]}, features(), 0)
