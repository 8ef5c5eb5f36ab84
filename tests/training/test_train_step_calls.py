"""How train steps are called, and what they refuse, with which words."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.training.training_runs import (
    BATCH,
    MICRO,
    MLP_PARAMS,
    PARAMS,
    SIZE,
    assert_same,
    mlp,
    mlp_batch,
    run,
    square_error,
)


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


def test_parameters_are_their_own_target_at_first():
    def towards(p, target, x, y):
        return square_error({"w": p["w"], "b": p["b"] * target["b"]}, x, y)

    optimizer, params = optax.sgd(0.1), jax.tree.map(jnp.array, PARAMS)
    step = hs.train_step(towards, optimizer, batch_argnums=(2, 3))
    found, _, _ = step(params, optimizer.init(params), params, *BATCH)
    gradient = jax.grad(towards)(PARAMS, PARAMS, *BATCH)
    assert_same(found, jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, gradient))
    assert_same(params, PARAMS)


ROWS = mlp_batch(0)
OPTIMIZERS = {"micro_adam": ho.micro_adam(0.01), "adam": ho.adam(0.01)}


def stepped(optimizer, *batch, loss=mlp, batch_argnums=(1, 2), **options):
    step = hs.train_step(loss, optimizer, batch_argnums=batch_argnums, **options)
    params = jax.tree.map(jnp.array, MLP_PARAMS)
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
            np.ones(SIZE - 1),
            loss=lambda p, x, y: mlp(p, x, np.zeros(SIZE, int)) + y.mean(),
        )


def test_accumulation_that_would_lose_statistics():
    with pytest.raises(TypeError, match="multi_steps"):
        stepped(optax.MultiSteps(ho.micro_adam(0.01), 2), *ROWS)


@pytest.mark.first(2)
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
