"""Hyperparameters that are none, statistics that are missing: errors, not other training."""

import jax.numpy as jnp
import optax
import pytest

import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_runs import LEAVES, MAX_NORM, SIZE, drawn, statistics_of, tree_of
from tests.optimizers.test_optimizers import NAMES, optimizer_of

PARAMS = tree_of(LEAVES, jnp.float32)
FOUND = statistics_of([x[0] for x in drawn()], jnp.float32)
OPTIMIZERS = {name: optimizer_of(name, 0.01) for name in NAMES} | {
    "dp_sgd": ho.dp_sgd(0.1, MAX_NORM, 1.0, seed=0)
}
NEEDY = [
    (name, statistic) for name, of in OPTIMIZERS.items() for statistic in of.required_statistics
]


def update(optimizer, **given):
    return optimizer.update(FOUND["gradient"], optimizer.init(PARAMS), PARAMS, **given)


@pytest.mark.parametrize(("name", "statistic"), NEEDY)
def test_a_missing_statistic_is_named(name, statistic):
    own = OPTIMIZERS[name]
    for optimizer in (own, optax.chain(optax.clip(1.0), own), ho.multi_steps(own, 2)):
        with pytest.raises(TypeError, match=statistic):
            update(optimizer, batch_size=SIZE)
