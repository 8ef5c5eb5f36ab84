"""What statistics optimizers say they need, alone and composed, and what where one is missing."""

import jax.numpy as jnp
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_runs import LEAVES, MAX_NORM, SIZE, drawn, statistics_of, tree_of
from tests.optimizers.test_optimizers import NAMES, optimizer_of

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


def test_two_clippings_are_not_mixed():
    """Both go by one name; the noise of the second would hide less than the clipping of the first
    lets through.
    """
    kinds = {"wide": ho.dp_sgd(0.1, 10.0, 1.0, seed=0), "narrow": ho.dp_sgd(0.1, 0.1, 1.0, seed=1)}
    with pytest.raises(ValueError, match="clipped_mean"):
        ho.required_statistics(
            optax.multi_transform(kinds, {"bias": "narrow", "layer": "wide"}), PARAMS
        )


@pytest.mark.parametrize(("name", "statistic"), NEEDY)
def test_a_missing_statistic_is_named(name, statistic):
    own = OPTIMIZERS[name]
    for optimizer in (own, optax.chain(optax.clip(1.0), own), ho.multi_steps(own, 2)):
        with pytest.raises(TypeError, match=statistic):
            update(optimizer, batch_size=SIZE)


def test_accumulation_that_would_lose_statistics_is_refused():
    """That of optax adds up the gradient alone."""
    with pytest.raises(TypeError, match="multi_steps"):
        ho.required_statistics(optax.MultiSteps(ho.micro_adam(0.01), 2), PARAMS)
