"""Rows that belong to examples by ids are not taken, and whoever passes them is told what else."""

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs


def loss(w, x):
    return jnp.mean(x @ w)


W, X = jnp.ones(3), jnp.ones((4, 3))
IDS = {"x": "ids"}


def dumped():
    return jax.jit(jax.grad(loss)).lower(W, X).as_text(debug_info=True)


WAYS = {
    "train_step": lambda: hs.train_step(loss, None, segments=IDS),
    "grad": lambda: hs.grad(loss, statistics=hs.norms(), segments=lambda w, x: None),
    "value_and_grad": lambda: hs.value_and_grad(loss, statistics=hs.norms(), segments=IDS),
    "rewrite_module": lambda: hs.rewrite_module(
        dumped(), batch=["x"], statistics=hs.norms(), segments=IDS
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_segments_are_refused_with_a_way_out(name):
    with pytest.raises(ValueError, match="rows_per_example"):
        WAYS[name]()
