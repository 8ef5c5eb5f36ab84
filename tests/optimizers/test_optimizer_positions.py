"""An optimizer's place in a chain: nothing before it is dropped, no rate is applied twice."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho

FROZEN, LABELS = {"w": True, "b": False}, {"w": "frozen", "b": "trained"}
READERS = {
    "dp_sgd": ho.dp_sgd(0.1, 1.0, 1.0, seed=0),
    "dp_adam": ho.dp_adam(0.1, 1.0, 1.0, seed=0),
    "private": optax.chain(ho.private_gradient(1.0, 1.0, seed=0), optax.adam(0.1)),
    "sign": ho.micro_sign_sgd(0.1),
    "micro": ho.micro_adam(0.1),
    "var": ho.micro_adam_var(0.1),
    "msq": ho.micro_adam_msq(0.1),
    "moments": optax.chain(ho.track_moments(), optax.adam(0.1)),
}


def parameters():
    return {"w": jnp.full((3, 2), 0.3), "b": jnp.zeros(2)}


@pytest.mark.parametrize(
    "frozen",
    [
        lambda optimizer: optax.multi_transform(
            {"frozen": optax.set_to_zero(), "trained": optimizer}, LABELS
        ),
        lambda optimizer: optax.chain(optimizer, optax.masked(optax.set_to_zero(), FROZEN)),
        lambda optimizer: optax.chain(
            optax.masked(optax.set_to_zero(), FROZEN),
            optax.masked(optimizer, {"w": False, "b": True}),
        ),
    ],
    ids=["multi_transform", "behind", "masked"],
)
def test_what_is_frozen_stays(frozen):
    optimizer, gradient = frozen(READERS["dp_sgd"]), parameters()
    given = {"grad": gradient, "clipped_mean": gradient, "batch_size": 4}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient, **given)
    assert not np.any(updates["w"])
    assert np.all(np.asarray(updates["b"]) != 0)
