"""How train steps are called, and what they refuse, with which words."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.training.training_models import SIZE as ROW_COUNT
from tests.training.training_models import TRAININGS, mlp
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


TRAINED, ROWS = TRAININGS["mlp"].params, TRAININGS["mlp"].batch(0)
OPTIMIZERS = {"micro_adam": ho.micro_adam(0.01), "adam": ho.adam(0.01)}


def stepped(optimizer, *batch, loss=mlp, batch_argnums=(1, 2), **options):
    step = hs.train_step(loss, optimizer, batch_argnums=batch_argnums, **options)
    params = jax.tree.map(jnp.array, TRAINED)
    return step(params, optimizer.init(params), *batch)


def batch_norm(p, x, y):
    h = x @ p["hidden"]["w"] + p["hidden"]["b"]
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)
    return jnp.mean((jnp.tanh(h) @ p["head"])[:, 0] * y)


def test_batch_norm_is_refused_at_its_line():
    with pytest.raises(hs.Refusal) as refusal:
        stepped(OPTIMIZERS["micro_adam"], *ROWS, loss=batch_norm)
    file, line = refusal.value.where.split(":")[:2]
    first = batch_norm.__code__.co_firstlineno
    assert file == __file__
    assert first < int(line) <= first + 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_wrong_batches(optimizer):
    with pytest.raises(ValueError, match="batch_argnums names argument 5; 3 positional"):
        stepped(optimizer, *ROWS, batch_argnums=5)
    with pytest.raises(ValueError, match=r"empty|at least one"):
        stepped(optimizer, *(x[:0] for x in ROWS))
    with pytest.raises(ValueError, match="examples"):
        stepped(
            optimizer,
            ROWS[0],
            np.ones(ROW_COUNT - 1),
            loss=lambda p, x, y: mlp(p, x, np.zeros(ROW_COUNT, int)) + y.mean(),
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_what_is_not_finite_is_passed_on(optimizer):
    x, y = np.array(ROWS[0]), ROWS[1]
    x[2, 1] = np.nan
    params, _, metrics = stepped(optimizer, x, y)
    assert np.isnan(metrics["loss"])
    assert all(np.isnan(leaf).any() for leaf in jax.tree.leaves(params))


def test_accumulation_that_would_lose_statistics():
    with pytest.raises(TypeError, match="multi_steps"):
        stepped(optax.MultiSteps(ho.micro_adam(0.01), 2), *ROWS)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (optax.lbfgs(), "optax.lbfgs"),
        (optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(5)), "backtracking"),
        (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)), "optax.contrib.sam"),
        (optax.contrib.sophia(0.1), "optax.contrib.sophia"),
        (ho.multi_steps(optax.lookahead(ho.adam(0.1), 5, 0.5), 2), "optax.lookahead"),
    ],
)
def test_optimizers_that_take_more_than_the_gradient(optimizer, name):
    with pytest.raises(TypeError, match=f"{name}.* takes more than a step has"):
        stepped(optimizer, *ROWS)
