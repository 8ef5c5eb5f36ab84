"""How train steps are called: metrics, arguments of the loss, optimizers of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hlo_surgery as hs
from tests.training.training_runs import (
    BATCH,
    MICRO,
    PARAMS,
    SIZE,
    assert_same,
    by_vmap,
    run,
    square_error,
)


def test_metrics():
    statistics = {
        "norms": hs.norms(),
        "each": hs.per_example(),
        "second_moment": hs.second_moment(),
    }
    _, metrics = run(MICRO, statistics=statistics, steps=1)
    losses, each = by_vmap(square_error, PARAMS, *BATCH)
    squares = sum(np.square(leaf).reshape(SIZE, -1).sum(1) for leaf in jax.tree.leaves(each))
    second_moment = jax.tree.map(lambda g: jnp.mean(g**2, 0), each)
    expected = {
        "loss": losses.mean(),
        "norms": np.sqrt(squares),
        "each": each,
        "second_moment": second_moment,
    }
    assert metrics.keys() == expected.keys()
    assert_same(metrics, expected)


def test_aux():
    def with_aux(p, x, y):
        return square_error(p, x, y), {"inputs": x.sum()}

    found, metrics = run(MICRO, with_aux, has_aux=True)
    expected, plain = run(MICRO)
    assert_same(found, expected)
    assert_same(metrics, plain | {"aux": {"inputs": BATCH[0].sum()}})


def test_any_optimizer_of_optax():
    found, _ = run(optax.sgd(0.1), steps=1)
    gradient = jax.grad(square_error)(PARAMS, *BATCH)
    assert_same(found, jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, gradient))


def test_inside_scan():
    step = hs.train_step(square_error, MICRO, batch_argnums=(1, 2))

    def scanned(carry, _):
        params, state, metrics = step(*carry, *BATCH)
        return (params, state), metrics["loss"]

    start = jax.tree.map(jnp.array, PARAMS)
    (params, _), losses = jax.lax.scan(scanned, (start, MICRO.init(start)), None, length=3)
    expected, metrics = run(MICRO, steps=3)
    assert_same(params, expected)
    assert_same(losses[-1], metrics["loss"])
