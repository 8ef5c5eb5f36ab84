"""Rows of all examples in one array, of which each example looks up its own: at T b + t."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, T, D = 4, 5, 3
W = 0.5 * jax.random.normal(jax.random.key(0), (D, D))
X = jax.random.normal(jax.random.key(1), (B, T, D))
PLACES = jax.random.randint(jax.random.key(2), (B, T), -3, 9)


def first(x, step=T):
    """The first row of each example."""
    return step * jnp.arange(len(x))


def losses(rows, x):
    return jnp.mean(jnp.sum(jnp.tanh(rows.reshape(len(x), -1)) ** 2, 1))


def flat(w, x):
    return (x @ w).reshape(-1, D)


def clipped(least, most, step=T):
    """Rows at numbers between bounds, from each example's first one on."""
    return lambda w, x, t: losses(flat(w, x)[jnp.clip(t, least, most) + first(x, step)[:, None]], x)


def put(least, most):
    def loss(w, x, t):
        at = jnp.clip(t, least, most) + first(x)[:, None]
        return losses(jnp.zeros((len(x) * T, D)).at[at.ravel()].add(flat(w, x)), x)

    return loss


def sliced(most):
    """Two rows from a place that each example gives."""

    def loss(w, x, t):
        starts = first(x) + jnp.clip(t[:, 0], 0, most)
        return losses(jnp.stack([lax.dynamic_slice(flat(w, x), (s, 0), (2, D)) for s in starts]), x)

    return loss


def updated(most):
    def loss(w, x, t):
        h = flat(w, x)
        for b in range(len(x)):
            at = (T * b + jnp.clip(t[b, 0], 0, most), 0)
            h = lax.dynamic_update_slice(h, jnp.sin(x[b, :1] @ w), at)
        return losses(h, x)

    return loss


def greatest(w, x, t):
    return losses(flat(w, x)[first(x) + jnp.argmax(x.sum(-1), 1)], x)


def greatest_of_what_is_trained(w, x, t):
    h = flat(w, x)
    return losses(h[first(x) + jnp.argmax(h.reshape(x.shape).sum(-1), 1)], x)


def first_few(w, x, t):
    return losses(flat(w, x)[first(x)[:, None] + lax.top_k(x.sum(-1), 2)[1]], x)


def in_order(w, x, t):
    return losses(flat(w, x)[(first(x)[:, None] + jnp.argsort(t, 1)).reshape(-1)], x)


def left_over(w, x, t):
    return losses(flat(w, x)[first(x)[:, None] + lax.rem(jnp.maximum(t, 0), T)], x)


def summed_by_repeated(times):
    """Sums of rows by ids, as graph networks make them."""

    def loss(w, x, t):
        ids = jnp.repeat(jnp.arange(len(x)), times, total_repeat_length=len(x) * T)
        return losses(jax.ops.segment_sum(flat(w, x), ids, len(x)), x)

    return loss


def at(place):
    """Rows at places made of the data, from each example's first one on."""
    return lambda w, x, t: losses(flat(w, x)[first(x)[:, None] + place(t)], x)


MADE = {
    "left over by its sign": lambda t: t % T,
    "left over of bits": lambda t: (t.astype(np.uint32) % np.uint32(T)).astype(np.int32),
    "masked": lambda t: t & 3,
    "divided down": lambda t: jnp.clip(t, 0, 9) // 2,
    "shifted": lambda t: jnp.clip(t, 0, 9) >> 1,
    "if within": lambda t: jnp.where((t >= 0) & (t < T), t, 0),
    "from the end": lambda t: jnp.where((u := jnp.clip(t, -T, T - 1)) < 0, u + T, u),
    "the last that is there": lambda t: jnp.maximum((t > 0).sum(1, keepdims=True) - 1, 0),
    "how many are before": lambda t: jnp.cumsum(t[:, 1:] > 0, 1),
    "drawn": lambda t: jax.random.randint(jax.random.key(3), (2,), 0, T),
}

OWN = {
    **{name: at(place) for name, place in MADE.items()},
    "clipped": clipped(0, T - 1),
    "the greatest": greatest,
    "the greatest of what is trained": greatest_of_what_is_trained,
    "the first few": first_few,
    "in order": in_order,
    "left over": left_over,
    "put": put(0, T - 1),
    "sliced": sliced(T - 2),
    "summed by repeated ids": summed_by_repeated(T),
    "updated": updated(T - 1),
}


def own_gradients(loss):
    return np.stack([jax.grad(loss)(W, X[b : b + 1], PLACES[b : b + 1]) for b in range(B)])


@pytest.mark.parametrize("name", OWN)
def test_rows_that_lie_among_an_examples_own_are_its_own(name):
    loss = OWN[name]
    asked = {"second": hs.second_moment(), "norms": hs.norms()}
    found = hs.grad(loss, batch_argnums=(1, 2), statistics=asked)(W, X, PLACES)[1]
    own = own_gradients(loss)
    np.testing.assert_allclose(found["second"], np.mean(own**2, 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["norms"], np.sqrt((own**2).sum((1, 2))), rtol=1e-4)


def of_any(w, x, t):
    return losses(flat(w, x)[t + first(x)[:, None]], x)


def that_wrap(w, x, t):
    """In eight bits 17 * 15 is -1."""
    at = lax.rem(jnp.clip(t.astype(np.int8), 0, 15) * np.int8(17), np.int8(T))
    return losses(flat(w, x)[jnp.clip(at + first(x)[:, None], 0, None)], x)


NOT_MADE = {
    "left over of more": lambda t: t % (T + 1),
    "left over below": lambda t: lax.rem(t, T),
    "masked by more": lambda t: t & 7,
    "divided down below": lambda t: jnp.clip(t, -1, 9) // 2,
    "if within more": lambda t: jnp.where((t >= 0) & (t <= T), t, 0),
    "if within one side": lambda t: jnp.where((t >= 0) | (t < T), t, 0),
    "unless within": lambda t: jnp.where((t >= 0) & (t < T), 0, t),
    "the last of more": lambda t: (t > 0).sum(1, keepdims=True),
}

MIXED = {
    **{name: at(place) for name, place in NOT_MADE.items()},
    "beyond": clipped(0, T),
    "before": clipped(-1, T - 1),
    "of rows of another length": clipped(0, T - 1, T - 1),
    "of any": of_any,
    "put beyond": put(0, T),
    "put from zero on": put(0, None),
    "that wrap": that_wrap,
    "summed by other ids": summed_by_repeated(T - 1),
    "sliced beyond": sliced(T - 1),
    "updated beyond": updated(T),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_may_be_anothers_are_refused(name):
    with pytest.raises(hs.Refusal):
        hs.grad(MIXED[name], batch_argnums=(1, 2), statistics=hs.second_moment())(W, X, PLACES)


def penalised(params, rows):
    """A column of a table, looked up at numbers of the data, and a penalty of all of it."""
    looked_up = jnp.tanh(params["table"][jnp.clip(rows, 0, 4), 0] * params["scale"])
    return jnp.mean(looked_up) + jnp.sum(params["table"] ** 2)


def test_a_table_whose_rows_data_picks_lies_beside_no_example():
    params = {"table": jax.random.normal(jax.random.key(3), (7, 2)), "scale": jnp.float32(0.7)}
    rows = jnp.asarray([4, 0, 6, 1])
    moments = hs.grad(penalised, batch_argnums=1, statistics=hs.second_moment())(params, rows)[1]
    own = [jax.grad(penalised)(params, rows[b : b + 1]) for b in range(len(rows))]
    wanted = jax.tree.map(lambda *each: np.mean(np.square(each), 0), *own)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), moments, wanted)
