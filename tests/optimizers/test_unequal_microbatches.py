"""Microbatches of unequal sizes, some empty, step as the whole batch: float64 references."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_references import private_sgd
from tests.optimizers.optimizer_runs import (
    LEAVES,
    MAX_NORM,
    assert_within,
    drawn,
    followed,
    needed,
    statistics_of,
    tree_of,
)
from tests.optimizers.test_optimizers import NAMES, optimizer_of, options_of, reference_of

# Their sum is no power of two, by which a division would be exact.
SIZES = (3, 0, 2)


def pair_of(name):
    """The optimizer, and the reference that sees all examples at once."""
    if name == "dp_sgd":
        return ho.dp_sgd(0.1, MAX_NORM, 0.0, seed=0), private_sgd(0.1, MAX_NORM)
    return tuple(of(name, 0.01, **options_of(name)) for of in (optimizer_of, reference_of))


def microbatches(examples, sizes):
    """The statistics of each part of one batch; of none they are zeros."""
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        part = [x[end - size : end] if size else 0 * x[:1] for x in examples]
        yield size, statistics_of(part, jnp.float64)


@pytest.mark.parametrize("name", [*NAMES, "dp_sgd"])
def test_they_are_one_batch(name):
    """Their sizes are known at run time alone, as where padding is counted, and take no
    precision.
    """
    inner, reference = pair_of(name)
    batches = drawn(2, sum(SIZES))
    with jax.enable_x64(True):
        found = accumulated(inner, batches)
    assert_within(
        found, followed(reference, batches, jnp.float64, roundings=len(SIZES) + 5), jnp.float64
    )


def accumulated(inner, batches):
    """The parameters after every whole batch, stacked."""
    optimizer, params, found = ho.multi_steps(inner, len(SIZES)), tree_of(LEAVES, jnp.float64), []
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for t in range(len(batches[0])):
        for size, given in microbatches([x[t] for x in batches], SIZES):
            updates, state = update(
                given["gradient"], state, params, batch_size=size, **needed(inner, given)
            )
            params = optax.apply_updates(params, updates)
        found.append(params)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def test_the_noise_is_of_all_their_examples():
    zeros = jnp.zeros(40_000)
    optimizer = ho.multi_steps(ho.dp_sgd(1.0, 0.7, 1.3, seed=0), len(SIZES))
    state, update, noise = optimizer.init(zeros), jax.jit(optimizer.update), zeros
    for size in SIZES:
        noise, state = update(zeros, state, clipped_mean=zeros, batch_size=size)
    assert abs(float(noise.std()) / (1.3 * 0.7 / sum(SIZES)) - 1) < 5 / (2 * 40_000) ** 0.5
