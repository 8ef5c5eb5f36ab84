"""Examples of several rows: the statistics of the same program whose examples are an axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering

B, ROWS = 4, 2
STATISTICS = {
    "norms": hs.norms(),
    "second_moment": hs.second_moment(),
    "variance": hs.variance(),
    "sign": hs.mean_sign(),
    "clipped": hs.clipped_mean(0.1),
    "gram": hs.gram(),
    "each": hs.per_example(),
}


def problem():
    r = np.random.default_rng(0)
    params = {"w": r.normal(size=(3, 4)), "v": r.normal(size=4)}
    return params, r.normal(size=(B * ROWS, 5, 3)), r.uniform(1, 2, B)


def scores(params, x):
    return (jnp.tanh(x @ params["w"]) @ params["v"]).sum(-1)


def strided(params, x, weight):
    s = scores(params, x)
    return -jnp.mean(weight * jax.nn.log_sigmoid(s[0::2] - s[1::2]))


def reshaped(params, x, weight):
    s = scores(params, x).reshape(-1, ROWS)
    return -jnp.mean(weight * jax.nn.log_sigmoid(s[:, 0] - s[:, 1]))


def by_row(params, x, weight):
    """Each row has a loss of its own."""
    return jnp.mean(scores(params, x) ** 2)


def of_pairs(loss):
    """The loss of examples that are an axis, [B, ROWS, ...]."""
    return lambda params, x, weight: loss(params, x.reshape(-1, *x.shape[2:]), weight)


LOSSES = [strided, reshaped, by_row]


@pytest.mark.first(1)
@pytest.mark.parametrize(("loss", "strategy"), covering(LOSSES, ["auto", "lift", "loop"]))
def test_statistics_are_those_of_each_pair(loss, strategy):
    with jax.enable_x64(True):
        params, x, weight = problem()
        how = {"batch_argnums": (1, 2), "statistics": STATISTICS, "strategy": strategy}
        gradient, found = hs.grad(loss, rows_per_example=ROWS, **how)(params, x, weight)
        pairs = x.reshape(B, ROWS, *x.shape[1:])
        of_one = jax.grad(lambda p, x, w: of_pairs(loss)(p, x[None], w[None]))
        each = jax.device_get(jax.vmap(of_one, (None, 0, 0))(params, pairs, weight))
        whole, as_axis = hs.grad(of_pairs(loss), **how)(params, pairs, weight)
    np.testing.assert_allclose(found["each"]["w"], each["w"], rtol=1e-9)
    flat = np.concatenate([each["v"], each["w"].reshape(B, -1)], 1)
    np.testing.assert_allclose(found["norms"], np.linalg.norm(flat, axis=1), rtol=1e-9)
    assert jax.tree.all(jax.tree.map(np.allclose, (gradient, found), (whole, as_axis)))


def test_of_rows_by_themselves_an_example_is_one():
    """What the pairs' loss makes of two rows is refused where each is taken for an example."""
    params, x, _ = problem()

    def loss(p, x):
        return strided(p, x, 1.0)

    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.norms())(params, x)


def test_rows_of_other_pairs_are_others():
    """Neighbours of two pairs meet."""

    def shifted(p, x):
        return jnp.mean(jax.nn.log_sigmoid(scores(p, x)[1:-1:2] - scores(p, x)[2::2]))

    params, x, _ = problem()
    with pytest.raises(hs.Refusal):
        hs.grad(shifted, statistics=hs.norms(), rows_per_example=ROWS)(params, x)


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        (3, ValueError, "rows_per_example must divide"),
        (4, ValueError, "different numbers of examples"),
        (0, ValueError, "how many rows an example has, at least 1"),
        (2.0, TypeError, "an integer"),
    ],
)
def test_wrong_numbers_of_rows_are_errors(rows, error, said):
    with pytest.raises(error, match=said):
        hs.grad(strided, batch_argnums=(1, 2), statistics=hs.norms(), rows_per_example=rows)(
            *problem()
        )
