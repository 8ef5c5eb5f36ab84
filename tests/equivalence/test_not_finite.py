"""Examples whose gradient is no number: nothing that is made of it is one, and others' stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.products import covering


def of_rows(p, rows, y):
    """The last row of the table is looked up by nobody."""
    return jnp.mean(y * jnp.sum(jnp.tanh(p["w"][rows]), -1))


def of_bags(p, rows, y):
    return of_rows(p, jnp.stack([rows, rows], 1), y[:, None])


def of_the_first_rows(p, rows, y):
    return jnp.mean(y * jnp.sum(jnp.tanh(rows[:, None] + p["w"][:2].reshape(-1)), -1))


def of_a_triangle(p, rows, y):
    one_hot = jnp.eye(3)[rows]
    return jnp.mean(y * jnp.sum(jnp.tanh(one_hot @ jnp.tril(p["w"])), -1))


STATISTICS = {
    "clipped": hs.clipped_mean(0.5, nan_safe=False),
    "squares": hs.clipped_second_moment(0.5, nan_safe=False),
    "weighted": hs.weighted_mean(lambda norms: 1 / (1 + norms)),
    "directions": hs.top_directions(2),
}


@pytest.mark.parametrize(
    ("loss", "strategy"),
    covering([of_rows, of_bags, of_the_first_rows, of_a_triangle], ["auto", "lift", "loop"]),
)
def test_nan_times_the_weight_of_nan_is_in_every_element(loss, strategy):
    p, rows = {"w": jnp.arange(9.0).reshape(3, 3) / 9}, jnp.array([0, 1, 0])
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=STATISTICS, strategy=strategy)
    found = f(p, rows, jnp.array([1.0, np.nan, 2.0]))[1]
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(found))
