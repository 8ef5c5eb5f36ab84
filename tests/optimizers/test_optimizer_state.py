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
from tests.optimizers.test_optimizers import NAMES, optimizer_of, options_of, reference_of
from tests.rounded import Rounded, unit_of

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


@pytest.mark.parametrize(
    ("name", "weight_decay"),
    [*((name, 0.0) for name in NAMES), ("micro_adam", 0.01), ("micro_sign_sgd", 0.01)],
)
def test_in_float32_under_bfloat16_parameters(name, weight_decay):
    """An update is the reference's at the same parameters, rounded once to bfloat16."""
    options = options_of(name) | {"weight_decay": weight_decay}
    optimizer, reference = optimizer_of(name, 0.01, **options), reference_of(name, 0.01, **options)
    unit = 2 * unit_of(jnp.float32)
    params = tree_of(LEAVES, jnp.bfloat16)
    state, update = optimizer.init(params), jax.jit(partial(optimizer.update, batch_size=2))
    for examples in narrow_examples():
        found = statistics_of(examples, jnp.float32)
        gradient = jax.tree.map(lambda g: g.astype(jnp.bfloat16), found["gradient"])
        before = [Rounded(x := np.float64(leaf), 0 * x, unit) for leaf in jax.tree.leaves(params)]
        after = reference(
            before, [[Rounded(x[b], 0 * x[b], unit) for x in examples] for b in range(2)]
        )
        updates, state = update(gradient, state, params, **needed(optimizer, found))
        for got, old, new in zip(jax.tree.leaves(updates), before, after, strict=True):
            want = new.value - old.value
            assert (
                abs(np.float64(got) - want) <= new.error + unit_of(jnp.bfloat16) * abs(want)
            ).all()
        floats = [
            leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        assert all(leaf.dtype == jnp.float32 for leaf in floats)
        params = optax.apply_updates(params, updates)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(params))


def narrow_examples():
    """Two examples, (1 + d) g and (1 - d) g: their mean g is exact in bfloat16."""
    rng = np.random.default_rng(2)
    for step in zip(*drawn(size=1), strict=True):
        g = [np.float64(jnp.asarray(x, jnp.bfloat16)) for x in step]
        d = [rng.choice([0.5, 2.0, 3.0], x.shape[1:]) for x in g]
        yield [np.concatenate([(1 + k) * x, (1 - k) * x]) for x, k in zip(g, d, strict=True)]
