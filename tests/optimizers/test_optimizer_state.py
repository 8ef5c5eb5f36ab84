"""The state of the optimizers: in float32 whatever the parameters, and through checkpoints."""

import io
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_runs import (
    LEAVES,
    MAX_NORM,
    SIZE,
    drawn,
    needed,
    statistics_of,
    tree_of,
)
from tests.optimizers.test_optimizers import NAMES, optimizer_of, options_of

PARAMS = tree_of(LEAVES, jnp.float32)
OPTIMIZERS = {name: optimizer_of(name, 0.01, **options_of(name)) for name in NAMES} | {
    "schedule": ho.micro_adam(optax.linear_schedule(0.1, 0.01, 5)),
    "dp_sgd": ho.dp_sgd(0.1, MAX_NORM, noise_multiplier=1.0, seed=0, momentum=0.9),
    "moments": optax.chain(ho.track_moments(0.9), ho.micro_adam(0.01)),
    "microbatches": ho.multi_steps(ho.micro_adam_var(0.01), 3),
}


FOUND = [statistics_of([x[t] for x in drawn()], jnp.float32) for t in range(6)]


def stepped(optimizer, update, state, steps):
    """The updates of the last of these steps, and the state after it."""
    updates = None
    for t in steps:
        updates, state = update(FOUND[t]["gradient"], state, PARAMS, **needed(optimizer, FOUND[t]))
    return updates, state


def through_npz(state, optimizer):
    """As a checkpoint of arrays alone: the tree is that of a new optimizer's state."""
    leaves, file = jax.tree.leaves(state), io.BytesIO()
    np.savez(file, *leaves)
    file.seek(0)
    with np.load(file) as loaded:
        read = [jnp.asarray(loaded[name]) for name in loaded.files]
    tree = jax.tree.structure(optimizer.init(PARAMS))
    return jax.tree.unflatten(tree, read)


def through_pickle(state, optimizer):
    return pickle.loads(pickle.dumps(state))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_state_goes_on_as_the_old_one(name):
    optimizer = OPTIMIZERS[name]
    run = partial(stepped, optimizer, jax.jit(partial(optimizer.update, batch_size=SIZE)))
    _, state = run(optimizer.init(PARAMS), range(4))
    expected = run(state, range(4, 6))
    assert any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(expected[0]))
    for through in (through_npz, through_pickle):
        restored = through(state, optimizer)
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, restored, state)
        jax.tree.map(np.testing.assert_array_equal, run(restored, range(4, 6)), expected)
