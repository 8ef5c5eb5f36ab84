"""What a train step refuses, and with which words; what is not finite it does not hide."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.training.training_models import SIZE, TRAININGS, mlp

PARAMS, BATCH = TRAININGS["mlp"].params, TRAININGS["mlp"].batch(0)
OPTIMIZERS = {"micro_adam": ho.micro_adam(0.01), "adam": ho.adam(0.01)}


def stepped(optimizer, *batch, loss=mlp, batch_argnums=(1, 2), **options):
    step = hs.train_step(loss, optimizer, batch_argnums=batch_argnums, **options)
    params = jax.tree.map(jnp.array, PARAMS)
    return step(params, optimizer.init(params), *batch)


def batch_norm(p, x, y):
    h = x @ p["hidden"]["w"] + p["hidden"]["b"]
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)
    return jnp.mean((jnp.tanh(h) @ p["head"])[:, 0] * y)


def test_batch_norm_is_refused_at_its_line():
    with pytest.raises(hs.Refusal) as refusal:
        stepped(OPTIMIZERS["micro_adam"], *BATCH, loss=batch_norm)
    file, line = refusal.value.where.split(":")[:2]
    first = batch_norm.__code__.co_firstlineno
    assert file == __file__
    assert first < int(line) <= first + 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_wrong_batches(optimizer):
    with pytest.raises(ValueError, match="batch_argnums names argument 5; 3 positional"):
        stepped(optimizer, *BATCH, batch_argnums=5)
    with pytest.raises(ValueError, match=r"empty|at least one"):
        stepped(optimizer, *(x[:0] for x in BATCH))
    with pytest.raises(ValueError, match="examples"):
        stepped(
            optimizer,
            BATCH[0],
            np.ones(SIZE - 1),
            loss=lambda p, x, y: mlp(p, x, np.zeros(SIZE, int)) + y.mean(),
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_what_is_not_finite_is_passed_on(optimizer):
    x, y = np.array(BATCH[0]), BATCH[1]
    x[2, 1] = np.nan
    params, _, metrics = stepped(optimizer, x, y)
    assert np.isnan(metrics["loss"])
    assert all(np.isnan(leaf).any() for leaf in jax.tree.leaves(params))


def test_accumulation_that_would_lose_statistics():
    with pytest.raises(TypeError, match="multi_steps"):
        stepped(optax.MultiSteps(ho.micro_adam(0.01), 2), *BATCH)


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
        stepped(optimizer, *BATCH)
