"""`on_mixing="contribution"` where examples meet in pairs: each has its own copy of the parameters.

The oracle gives each example a copy, which multiplies its rows alone: g_b is B times the gradient
to copy b.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.acceptance.test_contributions import squares

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


def encoded(p, x, on):
    return on(on(jnp.tanh(on(on(x, p["w"]), p["b"])), p["v"]), p["c"])


def hardest_pairs(p, x, y, labels, on):
    z = encoded(p, x, on)
    apart, same = ((z[:, None] - z) ** 2).sum(-1), labels[:, None] == labels
    nearest = jnp.where(same, 1e9, apart).min(1)
    return jnp.mean(jax.nn.softplus(jnp.where(same, apart, -1e9).max(1) - nearest))


def smoothed_keys(p, x, y, _, on):
    keys = jnp.roll(encoded(p, y, on), 1, 0)
    return jnp.mean(jax.nn.logsumexp(encoded(p, x, on) @ keys.T, -1))


def square_of_the_mean(p, x, y, _, on):
    return jnp.sum(encoded(p, x, on).mean(0) ** 2)


def found_statistics(loss, params, **statistics):
    def of_shared(p, *batch):
        return loss(p, *batch, shared)

    return hs.grad(of_shared, statistics=statistics, **CONTRIBUTION)(params, *BATCH)[1]


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
