"""The optimizers inside optax's combinators, with microbatches, and what they say they need."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho
from tests.optimizers import optimizer_references as references
from tests.optimizers.optimizer_runs import (
    LEAVES,
    MAX_NORM,
    SIZE,
    assert_within,
    drawn,
    followed,
    statistics_of,
    trained,
    tree_of,
)
from tests.optimizers.test_optimizers import NAMES, optimizer_of, options_of, reference_of

PARAMS = tree_of(LEAVES, jnp.float32)
FOUND = [statistics_of([x[t] for x in drawn()], jnp.float32) for t in range(5)]
EPS = float(jnp.finfo(jnp.float32).eps)
MICRO = partial(ho.micro_adam, 0.01, clip_norm=5.0, weight_decay=0.01)


def updates_of(optimizer, at=lambda tree: tree, names=("second_moment", "mean_sign")):
    """The updates of five steps, of some of the parameters."""
    params = at(PARAMS)
    state, updates = optimizer.init(params), []
    update = jax.jit(partial(optimizer.update, batch_size=SIZE))
    for found in FOUND:
        step, state = update(
            at(found["gradient"]), state, params, **{name: at(found[name]) for name in names}
        )
        updates.append(step)
    return updates


def assert_same(found, expected):
    """To rounding: XLA may compile the two differently."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=16 * EPS, atol=1e-9), found, expected)


def test_in_chain():
    halved = optax.chain(optax.identity(), MICRO(), optax.scale(0.5))
    assert_same(updates_of(halved), jax.tree.map(lambda u: 0.5 * u, updates_of(MICRO())))


def test_multi_transform_of_two_kinds():
    """Each as if its parameters were all: the clipping, too, is of their gradient's norm alone."""
    kinds = {"adam": MICRO(), "sign": ho.micro_sign_sgd(0.01, weight_decay=0.01)}
    both = updates_of(optax.multi_transform(kinds, {"bias": "sign", "layer": "adam"}))
    for name, kind in [("bias", "sign"), ("layer", "adam")]:
        assert_same(
            [{name: u[name]} for u in both],
            updates_of(kinds[kind], lambda tree, n=name: {n: tree[n]}),
        )


@pytest.mark.parametrize(("every_k", "size", "dtype"), [(3, 2, jnp.float32), (4, 1, jnp.float64)])
@pytest.mark.parametrize("name", [*NAMES, "dp_sgd"])
def test_microbatches_are_one_batch(name, every_k, size, dtype):
    """The reference sees the examples of all; what is known only of two examples may come one by
    one.
    """
    steps = 6
    if name == "dp_sgd":
        inner, reference = (
            ho.dp_sgd(0.1, MAX_NORM, 0.0, seed=0),
            references.private_sgd(0.1, MAX_NORM),
        )
    else:
        inner, reference = (f(name, 0.01, **options_of(name)) for f in (optimizer_of, reference_of))
    examples = drawn(steps * every_k, size)
    whole = [x.reshape(steps, every_k * size, *x.shape[2:]) for x in examples]
    with jax.enable_x64(dtype == jnp.float64):
        found = trained(ho.multi_steps(inner, every_k), examples, dtype, size)
    assert_within(
        jax.tree.map(lambda x: x[every_k - 1 :: every_k], found),
        followed(reference, whole, dtype, roundings=every_k + 4),
        dtype,
    )
