"""Batches regrouped over two dimensions, or of several views; mixing within them is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering

PARTS, COUNT, STEPS = 2, 3, 5
SIZE = PARTS * COUNT
KEYS = jax.random.split(jax.random.key(0), 4)
W, V = jax.random.normal(KEYS[0], (4, 3)), jax.random.normal(KEYS[1], (3,))
X = jax.random.normal(KEYS[2], (SIZE, STEPS, 4))


def dense(w, v, y):
    return jnp.tanh(y @ w + v)


def grouped(w, v, x):
    return jnp.mean(dense(w, v, x.reshape(PARTS, COUNT, STEPS, 4)) ** 2)


def flat_tokens(w, v, x):
    return jnp.mean(dense(w, v, x.reshape(PARTS, COUNT * STEPS, 4)) ** 2)


def moved(w, v, x):
    y = jnp.einsum("gntd,df->fngt", x.reshape(PARTS, COUNT, STEPS, 4), w)
    return jnp.mean(jnp.tanh(y) * v[:, None, None, None])


def rows(w, v, x):
    index = jnp.int32(jnp.abs(x[..., 0])).clip(0, 3).reshape(PARTS, COUNT, STEPS)
    return jnp.mean(jnp.sin(w[index]) * v)


def part_by_part(axis):
    def gradient(w, v, x):
        of_part = jax.grad(lambda w, v, y: jnp.mean(dense(w, v, y) ** 2), (0, 1))
        parts = jax.vmap(of_part, (None, None, axis))(w, v, x.reshape(PARTS, COUNT, STEPS, 4))
        return jax.tree.map(lambda g: g.mean(0), parts)

    return gradient


SECOND_MOMENT = {"batch_argnums": 1, "statistics": hs.second_moment()}

GRADIENTS = {
    **{f.__name__: jax.grad(f, (0, 1)) for f in (grouped, flat_tokens, moved, rows)},
    "part_by_part": part_by_part(0),
    "across_parts": part_by_part(1),
}


def examples_of(gradient):
    """The gradient of a batch that is example b all over, for each b: linear in the examples, so it
    is example b's.
    """
    return [gradient(W, V, jnp.broadcast_to(x, X.shape)) for x in X]


@pytest.mark.parametrize(("name", "strategy"), covering(list(GRADIENTS), ["auto", "lift", "loop"]))
def test_statistics_of_a_split_batch(name, strategy):
    asked = {"square": hs.second_moment(), "each": hs.per_example()}
    rewritten = hs.rewrite(GRADIENTS[name], batch_argnums=2, statistics=asked, strategy=strategy)
    gradient, found = rewritten(W, V, X)
    each = jax.tree.map(lambda *g: jnp.stack(g), *examples_of(GRADIENTS[name]))
    for plain, g, total, second, alone in zip(
        GRADIENTS[name](W, V, X), each, gradient, found["square"], found["each"], strict=True
    ):
        np.testing.assert_allclose(total, plain, rtol=0, atol=1e-6 * np.abs(g).max())
        np.testing.assert_allclose(alone, g, rtol=0, atol=1e-6 * np.abs(g).max())
        np.testing.assert_allclose(
            second, np.mean(np.square(g), 0), rtol=0, atol=1e-6 * np.square(g).max()
        )


MIXING = {
    "group_mean": lambda w, y: (jnp.tanh(y @ w) - jnp.tanh(y @ w).mean(1, keepdims=True)) ** 2,
    "group_max": lambda w, y: jnp.tanh(y @ w).max(0),
    "attention_in_group": lambda w, y: jax.nn.softmax(
        jnp.einsum("gntd,gmtd->gnmt", y, jnp.tanh(y @ w @ w.T)), 2
    ),
    "reversed_group": lambda w, y: jnp.tanh(y @ w) * jnp.tanh(y @ w)[:, ::-1],
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_within_a_group_is_refused(name):
    def loss(w, x):
        y = x.reshape(PARTS, COUNT, STEPS, 4)
        return jnp.mean(MIXING[name](w, y))

    with pytest.raises(hs.Refusal):
        hs.grad(loss, **SECOND_MOMENT)(W, X)


@pytest.mark.parametrize("axes", [(1, 2, 3), (0, 2, 3)])
def test_data_of_a_part_is_no_constant_of_the_batch(axes):
    def loss(w, x):
        y = x.reshape(PARTS, COUNT, STEPS, 4)
        return jnp.mean(jnp.tanh(y @ w) * y.mean(axes, keepdims=True))

    with pytest.raises(hs.Refusal, match="data of the whole batch"):
        hs.grad(loss, **SECOND_MOMENT)(W, X)


KEYS_OF_VIEWS = jax.random.split(jax.random.key(0), 5)
PARAMS = {
    "a": jax.random.normal(KEYS_OF_VIEWS[0], (7, 5)),
    "b": jax.random.normal(KEYS_OF_VIEWS[1], (5,)),
}
PARAMS["c"] = jax.random.normal(KEYS_OF_VIEWS[2], (5, 4))
X_OF_VIEWS, Y = (
    jax.random.normal(KEYS_OF_VIEWS[3], (6, 7)),
    jax.random.normal(KEYS_OF_VIEWS[4], (6, 7)),
)


def network(p, x):
    return jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]


def three_views(p, x, y):
    z = network(p, jnp.concatenate([x, y, 2 * x]))
    n = x.shape[0]
    return jnp.mean(jnp.sum((z[:n] - z[n : 2 * n]) ** 2 + z[2 * n :], -1))


def one_side_stopped(p, x, y):
    """As SimSiam does: the split's transpose lays zeros where nothing flows back."""
    student, teacher = jnp.split(network(p, jnp.concatenate([x, y])), 2)
    return jnp.mean(jnp.sum((student - jax.lax.stop_gradient(teacher)) ** 2, -1))


def guided(p, x, y):
    """As classifier-free guidance does: half of the rows take an embedding that all share."""
    with_null = jnp.concatenate([y, jnp.broadcast_to(p["a"][:, 0], y.shape)])
    z = network(p, jnp.concatenate([x, x]) + with_null)
    return jnp.mean(jnp.sum((2 * z[: x.shape[0]] - z[x.shape[0] :]) ** 2, -1))


def shifted_views(p, x, y):
    z = network(p, jnp.concatenate([x, y]))
    return jnp.mean(jnp.sum((z[1:7] - z[5:11]) ** 2, -1))


@pytest.mark.parametrize(
    ("loss", "strategy"),
    covering([three_views, one_side_stopped, guided], ["auto", "lift", "loop"]),
)
def test_views_belong_to_their_example(loss, strategy):
    examples = jax.vmap(jax.grad(loss), (None, 0, 0))(PARAMS, X_OF_VIEWS[:, None], Y[:, None])
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment(), strategy=strategy)
    gradient, squares = f(PARAMS, X_OF_VIEWS, Y)
    for name, g in examples.items():
        np.testing.assert_allclose(gradient[name], g.mean(0), atol=1e-5 * float(jnp.abs(g).max()))
        np.testing.assert_allclose(squares[name], (g**2).mean(0), atol=1e-5 * float((g**2).max()))


def test_shifted_views_are_refused():
    with pytest.raises(hs.Refusal, match=r"meets others|out of the batch"):
        hs.grad(shifted_views, batch_argnums=(1, 2), statistics=hs.second_moment())(
            PARAMS, X_OF_VIEWS, Y
        )
