"""Train steps with all kinds of optimizer: donation, summed losses, microbatches, bfloat16."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.training.training_runs import (
    BATCH,
    OPTIMIZERS,
    PARAMS,
    SIZE,
    assert_same,
    run,
    square_error,
)

ACCUMULATED = {
    f"{name} of microbatches": ho.multi_steps(OPTIMIZERS[name], 2)
    for name in ("micro_adam_msq", "dp_sgd")
}
ALL = OPTIMIZERS | ACCUMULATED


@pytest.mark.parametrize("optimizer", ALL.values(), ids=ALL.keys())
def test_parameters_and_state_are_donated(optimizer):
    step = hs.train_step(square_error, optimizer, batch_argnums=(1, 2))
    params = jax.tree.map(jnp.array, PARAMS)
    state = optimizer.init(params)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Some donated buffers were not usable")
        step(params, state, *BATCH)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))
    with pytest.raises(ValueError, match="go on with those that the step returned"):
        step(params, state, *BATCH)


@pytest.mark.parametrize("name", ["micro_adam_msq", "dp_sgd"])
def test_microbatches(name):
    """Two steps of halves of the batch are one of the whole."""
    optimizer = OPTIMIZERS[name]
    whole, _ = run(optimizer, steps=1)
    halves = ho.multi_steps(optimizer, 2)
    step = hs.train_step(square_error, halves, batch_argnums=(1, 2))
    params = jax.tree.map(jnp.array, PARAMS)
    state = halves.init(params)
    for half in (slice(0, SIZE // 2), slice(SIZE // 2, SIZE)):
        params, state, _ = step(params, state, *(x[half] for x in BATCH))
    assert_same(params, whole)
