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


def test_without_statistics_the_loss_is_the_only_metric():
    for optimizer in (MICRO, optax.sgd(0.1)):
        assert run(optimizer)[1].keys() == {"loss"}


def test_aux():
    def with_aux(p, x, y):
        return square_error(p, x, y), {"inputs": x.sum()}

    found, metrics = run(MICRO, with_aux, has_aux=True)
    expected, plain = run(MICRO)
    assert_same(found, expected)
    assert_same(metrics, plain | {"aux": {"inputs": BATCH[0].sum()}})


def test_one_batch_argument_of_several_arrays_and_example_axes():
    def of_pair(p, batch):
        return square_error(p, batch["x"].T, batch["y"])

    x, y = BATCH
    found, _ = run(MICRO, of_pair, ({"x": x.T, "y": y},), in_axes=({"x": 1, "y": 0},))
    assert_same(found, run(MICRO)[0])


def test_a_key_for_dropout_of_the_whole_batch():
    """Each example has its own row of what is drawn; another key draws others."""

    def dropped(p, x, keep, y):
        return square_error(p, jnp.where(keep, x, 0.0), y)

    def loss(p, x, y, key):
        return dropped(p, x, jax.random.bernoulli(key, 0.5, x.shape), y)

    x, y = BATCH
    moments = []
    for seed in (0, 1):
        key = jax.random.key(seed)
        step = hs.train_step(
            loss, MICRO, batch_argnums=(1, 2), statistics={"second": hs.second_moment()}
        )
        params = jax.tree.map(jnp.array, PARAMS)
        _, _, metrics = step(params, MICRO.init(params), x, y, key)
        _, each = by_vmap(dropped, PARAMS, x, jax.random.bernoulli(key, 0.5, x.shape), y)
        assert_same(metrics["second"], jax.tree.map(lambda g: jnp.mean(g**2, 0), each))
        moments.append(metrics["second"]["w"])
    assert np.abs(moments[0] - moments[1]).max() > 0.01


def test_any_optimizer_of_optax():
    found, _ = run(optax.sgd(0.1), steps=1)
    gradient = jax.grad(square_error)(PARAMS, *BATCH)
    assert_same(found, jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, gradient))


def test_the_loss_is_traced_once_for_all_steps():
    traced = []

    def loss(p, x, y):
        traced.append(x.shape)
        return square_error(p, x, y)

    step = hs.train_step(loss, MICRO, batch_argnums=(1, 2))
    params = jax.tree.map(jnp.array, PARAMS)
    state, counts = MICRO.init(params), []
    for _ in range(3):
        params, state, _ = step(params, state, *BATCH)
        counts.append(len(traced))
    assert counts[0] == counts[-1]


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


def test_a_state_that_is_the_parameters_is_no_second_donation():
    optimizer, params = optax.contrib.prodigy(), jax.tree.map(jnp.array, PARAMS)
    updates, _ = optimizer.update(
        jax.grad(square_error)(params, *BATCH), optimizer.init(params), params
    )
    assert_same(run(optimizer, steps=1)[0], optax.apply_updates(params, updates))
