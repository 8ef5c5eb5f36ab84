"""`on_mixing="contribution"` where examples meet in pairs: each has its own copy of the parameters.

The oracle gives each example a copy, which multiplies its rows alone: g_b is B times the gradient
to copy b.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B, WIDTH, HIDDEN = 6, 4, 5
CONTRIBUTION = {"on_mixing": "contribution", "batch_argnums": (1, 2, 3)}


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32) * 0.7


PARAMS = {
    "w": draw(0, WIDTH, HIDDEN),
    "b": draw(1, HIDDEN),
    "v": draw(2, HIDDEN, HIDDEN),
    "c": draw(3, HIDDEN),
}
BATCH = draw(4, B, WIDTH), draw(5, B, WIDTH), jnp.array([0, 1, 2, 0, 1, 1])
ADJACENCY = jnp.abs(draw(6, B, B))


def shared(rows, w):
    return rows @ w if w.ndim == 2 else rows + w


def by_copies(rows, copies):
    """Row b, and further views of example b, with copy b."""
    own = jnp.concatenate([copies] * (len(rows) // B))
    return jax.vmap(jnp.matmul)(rows, own) if own.ndim == 3 else rows + own


def encoded(p, x, on):
    return on(on(jnp.tanh(on(on(x, p["w"]), p["b"])), p["v"]), p["c"])


def unit(z):
    return z / jnp.sqrt((z**2).sum(-1, keepdims=True) + 1e-3)


def squares(h):
    return jnp.mean(jnp.sum(h**2, -1))


def matched_both_ways(p, x, y, _, on):
    s = encoded(p, x, on) @ encoded(p, y, on).T
    own = jnp.diag(s)
    return jnp.mean(jax.nn.logsumexp(s, 0) + jax.nn.logsumexp(s, 1) - 2 * own)


def two_views(p, x, y, _, on):
    z = unit(encoded(p, jnp.concatenate([x, y]), on))
    s = z @ z.T - 1e9 * jnp.eye(2 * B)
    return jnp.mean(jax.nn.logsumexp(s, -1) - jnp.concatenate([jnp.diag(s, B), jnp.diag(s, -B)]))


def hardest_pairs(p, x, y, labels, on):
    z = encoded(p, x, on)
    apart, same = ((z[:, None] - z) ** 2).sum(-1), labels[:, None] == labels
    nearest = jnp.where(same, 1e9, apart).min(1)
    return jnp.mean(jax.nn.softplus(jnp.where(same, apart, -1e9).max(1) - nearest))


def attention_and_layer(p, x, y, _, on):
    h = on(on(x, p["w"]), p["b"])
    return squares(on(on(jax.nn.softmax(h @ h.T) @ h, p["v"]), p["c"]))


def attention_in_a_loop(p, x, y, _, on):
    def step(h, _):
        return jnp.tanh(on(jax.nn.softmax(h @ h.T) @ h, p["v"])), None

    return squares(jax.lax.scan(step, jnp.tanh(on(x, p["w"])), None, length=3)[0])


def smoothed_keys(p, x, y, _, on):
    keys = jnp.roll(encoded(p, y, on), 1, 0)
    return jnp.mean(jax.nn.logsumexp(encoded(p, x, on) @ keys.T, -1))


def square_of_the_mean(p, x, y, _, on):
    return jnp.sum(encoded(p, x, on).mean(0) ** 2)


def square_of_all_similarities(p, x, y, _, on):
    z = encoded(p, x, on)
    return 0.01 * jnp.sum(z @ z.T) ** 2


LOSSES = [
    matched_both_ways,
    two_views,
    attention_and_layer,
    attention_in_a_loop,
    square_of_all_similarities,
]


def found_statistics(loss, params, **statistics):
    def of_shared(p, *batch):
        return loss(p, *batch, shared)

    return hs.grad(of_shared, statistics=statistics, **CONTRIBUTION)(params, *BATCH)[1]


def expected_gradients(loss):
    def of_copies(p, *batch):
        return loss(p, *batch, by_copies)

    copies = jax.tree.map(lambda w: jnp.stack([w] * B), PARAMS)
    return jax.tree.map(
        lambda g: B * np.asarray(g, np.float64), jax.jit(jax.grad(of_copies))(copies, *BATCH)
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_contributions_where_examples_meet_in_pairs(loss):
    found = found_statistics(
        loss, PARAMS, all=hs.per_example(), squares=hs.second_moment(), gram=hs.gram()
    )
    expected = expected_gradients(loss)
    scale = max(np.abs(g).max() for g in expected.values())
    for name, each in expected.items():
        np.testing.assert_allclose(
            found["all"][name], each, rtol=0, atol=2e-5 * scale, err_msg=name
        )
        close = {"rtol": 0, "atol": 4e-5 * scale**2, "err_msg": name}
        np.testing.assert_allclose(found["squares"][name], (each**2).mean(0), **close)
    rows = np.concatenate([g.reshape(B, -1) for g in expected.values()], 1)
    gram = rows @ rows.T
    np.testing.assert_allclose(found["gram"], gram, rtol=0, atol=4e-5 * np.abs(gram).max())


@pytest.mark.parametrize("loss", [hardest_pairs, smoothed_keys, square_of_the_mean])
def test_a_bias_of_rows_that_do_not_show_is_refused(loss):
    """What flows into the bias is summed before it is laid along the batch again, or moved."""
    with pytest.raises(hs.Refusal) as refused:
        found_statistics(loss, PARAMS, all=hs.per_example())
    assert refused.value.where.startswith(__file__)


def with_temperature(p, x, *_):
    z = jnp.tanh(x)
    return jnp.mean(jax.nn.logsumexp(z @ z.T * p["t"], -1))


def fixed_neighbours(p, x, *_):
    return squares(jnp.sin(ADJACENCY @ jnp.tanh(x) @ p["w"]))


def in_order_of_size(p, x, *_):
    return jnp.mean(jnp.arange(6.0)[:, None] * jnp.sort(x + p["d"], 0))


def taken_by_the_others(p, x, _, labels):
    return squares(jnp.sin((x + p["d"])[(2 * labels + 1) % B]) * x)


def row_by_row_of_a_table(p, x, *_):
    return squares(jnp.tanh(x @ x.T) @ p["rows"])


def of_differences(p, x, *_):
    h = jnp.tanh(x + p["d"])
    return squares((h[1:] - h[:-1]) @ p["w"])


SIZES = {"t": (), "w": (WIDTH, HIDDEN), "d": (WIDTH,), "rows": (B, WIDTH)}
UNCLEAR = [
    (with_temperature, "t"),
    (fixed_neighbours, "w"),
    (in_order_of_size, "d"),
    (taken_by_the_others, "d"),
    (row_by_row_of_a_table, "rows"),
    (of_differences, "w"),
]


@pytest.mark.parametrize(("loss", "name"), UNCLEAR)
def test_whose_copy_it_is_must_be_known(loss, name):
    params = {
        n: draw(7, *SIZES[n]) for n in SIZES if n == name or (loss is of_differences and n == "d")
    }

    def gradient(p, *batch):
        return jax.grad(lambda own: loss(p | {name: own}, *batch))(p[name])

    with pytest.raises(hs.Refusal) as refused:
        hs.rewrite(gradient, statistics=hs.norms(), **CONTRIBUTION)(params, *BATCH)
    assert refused.value.where.startswith(__file__)


def test_a_sum_of_data_that_is_constant_at_the_site_itself():
    """Of one value each example's row, and a sum of data alone: nothing lies between it and the
    gradient.
    """

    def loss(w, x):
        return jnp.mean(x @ w) * x.mean()

    x = BATCH[0]
    found = hs.grad(loss, statistics=hs.per_example())(PARAMS["w"][:, 0], x)[1]
    np.testing.assert_allclose(found, x * x.mean(), rtol=1e-5, atol=1e-6)
