"""Hyperparameters that are none, statistics that are missing: errors, not other training."""

import jax.numpy as jnp
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_runs import LEAVES, MAX_NORM, SIZE, drawn, statistics_of, tree_of
from tests.optimizers.test_optimizers import NAMES, optimizer_of

NAN, INF = float("nan"), float("inf")
MAKERS = {
    "adam": ho.adam,
    "micro_adam": ho.micro_adam,
    "micro_adam_var": ho.micro_adam_var,
    "sign_ema": ho.sign_ema,
    "micro_sign_sgd": ho.micro_sign_sgd,
    "dp_sgd": lambda rate, **more: ho.dp_sgd(rate, 1.0, 1.0, 0, **more),
    "dp_adam": lambda rate, **more: ho.dp_adam(rate, 1.0, 1.0, 0, **more),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("rate", [None, -0.1, NAN, INF, "0.1"])
def test_learning_rates_that_are_none(make, rate):
    with pytest.raises(ValueError, match=r"learning_rate is .*at least 0, or a schedule"):
        make(rate)


PARAMS = tree_of(LEAVES, jnp.float32)
FOUND = statistics_of([x[0] for x in drawn()], jnp.float32)
SQUARES, SIGNS = {"second_moment": hs.second_moment()}, {"mean_sign": hs.mean_sign()}
OPTIMIZERS = {name: optimizer_of(name, 0.01) for name in NAMES} | {
    "dp_sgd": ho.dp_sgd(0.1, MAX_NORM, 1.0, seed=0)
}
NEEDY = [
    (name, statistic) for name, of in OPTIMIZERS.items() for statistic in of.required_statistics
]


def update(optimizer, **given):
    return optimizer.update(FOUND["gradient"], optimizer.init(PARAMS), PARAMS, **given)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("adam", {}),
        ("micro_adam", SQUARES),
        ("micro_adam_var", SQUARES),
        ("micro_adam_msq", SQUARES),
        ("sign_sgd", {}),
        ("sign_ema", {}),
        ("micro_sign_sgd", SIGNS),
    ],
)
def test_what_each_requires(name, needs):
    optimizer = optimizer_of(name, 0.01)
    assert optimizer.required_statistics == needs
    assert ho.required_statistics(optimizer, PARAMS) == needs


@pytest.mark.parametrize(("name", "statistic"), NEEDY)
def test_a_missing_statistic_is_named(name, statistic):
    own = OPTIMIZERS[name]
    for optimizer in (own, optax.chain(optax.clip(1.0), own), ho.multi_steps(own, 2)):
        with pytest.raises(TypeError, match=statistic):
            update(optimizer, batch_size=SIZE)
