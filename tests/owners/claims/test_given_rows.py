"""Rows of nobody that get an owner on their way lie beside the examples: constants that differ from
row to row are refused as positions, those that do not are exact.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D = 4, 2
DRAW = np.random.default_rng(0)
X = np.float32(DRAW.normal(size=(B, D)))
PARAMS = {
    name: np.float32(DRAW.normal(size=shape)) for name, shape in {"w": (D, D), "c": (D,)}.items()
}
BY_PLACE, ALIKE = np.float32([1, 2, -1, 0.5]), np.float32(1.5)


def constants(params, scales):
    return jnp.broadcast_to(scales[..., None] * params["c"], (B, D))


def listed(params, x, scales):
    """The examples' rows and constants, one below another."""
    return jnp.concatenate([x, constants(params, scales)])


def by_example(rows):
    return rows.reshape(2, B, D).swapaxes(0, 1)


def behind_a_loop(*given):
    return by_example(lax.fori_loop(0, 2, lambda _, rows: 2 * rows, listed(*given)))


def stepped(params, x, scales):
    return lax.fori_loop(0, 2, lambda _, rows: rows + x, constants(params, scales))


def written(params, x, scales):
    rows = lax.scan(lambda rows, _: (rows + x, rows), constants(params, scales), None, length=2)
    return rows[1]


def shifted(params, x, scales):
    return lax.scan(lambda rows, _: (constants(params, scales), rows), x, None, length=2)[1]


def branched(params, x, scales):
    return lax.cond(scales.max() > 0, lambda: constants(params, scales), lambda: x)


def put_over(params, x, scales):
    twice = jnp.tile(constants(params, scales), (2, 1))
    return by_example(lax.dynamic_update_slice(twice, x, (0, 0)))


def picked(params, x, scales):
    return listed(params, x, scales)[np.arange(2 * B).reshape(2, B).T]


def picked_by_step(params, x, scales):
    beside = constants(params, scales)[: B // 2]

    def step(carry, rows):
        return carry, jnp.concatenate([rows, beside])[np.array([[0, 2], [1, 3]])]

    return lax.scan(step, 0.0, x.reshape(2, B // 2, D))[1]


ROWS = {
    "picked by each step": picked_by_step,
    "laid out": lambda *given: by_example(listed(*given)),
    "laid out behind an op": lambda *given: by_example(2 * listed(*given)),
    "laid out behind a loop": behind_a_loop,
    "picked": picked,
    "added to": lambda params, x, scales: listed(params, x, scales) + jnp.tile(x, (2, 1)),
    "put over": put_over,
    "a carry that is added to": stepped,
    "a carry that is written": written,
    "a carry that gets them": shifted,
    "a branch": branched,
    "mapped over": lambda *given: lax.map(lambda a: a, listed(*given).reshape(2, B, D)),
}


def found(name, scales):
    def loss(params, x, scales):
        return jnp.sum(ROWS[name](params, x, scales) @ params["w"]) / B

    f = hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.per_example())
    return f(PARAMS, X, scales)


@pytest.mark.parametrize("name", ROWS)
def test_constants_by_place_are_refused(name):
    with pytest.raises(hs.Refusal, match="holds something for each example's position") as caught:
        found(name, BY_PLACE)
    assert "['c']" in caught.value.output


@pytest.mark.parametrize("name", ROWS)
def test_constants_that_are_the_same_in_all_rows_are_exact(name):
    def one(params, x):
        return jnp.sum(ROWS[name](params, jnp.tile(x, (B, 1)), ALIKE) @ params["w"]) / B

    _, each = found(name, ALIKE)
    for b in range(B):
        expected = jax.grad(one)(PARAMS, X[b])
        for leaf, own in expected.items():
            np.testing.assert_allclose(each[leaf][b], own, rtol=1e-5)


def weighed(params, x, weights):
    rows = listed(params, x, ALIKE).reshape(2, B, D).sum(0)
    return jnp.sum(weights[:, None] * rows @ params["w"])


def turned(params, x, scales):
    rows = jnp.roll(jnp.tile(constants(params, scales), (2, 1)), B, 0)
    return jnp.sum((rows.reshape(2, B, D) + x) @ params["w"])


@pytest.mark.parametrize("loss", [weighed, turned])
def test_places_that_go_back_and_forth_come_to_an_end(loss):
    f = hs.rewrite(jax.grad(loss), batch_argnums=1, statistics=hs.norms())
    with pytest.raises(hs.Refusal, match="holds something for each example's position"):
        f(PARAMS, X, BY_PLACE)
