"""The optimizers on drawn examples' gradients: against the paper's references in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho
from tests.optimizers import optimizer_references as references
from tests.optimizers.optimizer_references import private_sgd
from tests.optimizers.optimizer_runs import (
    LEAVES,
    MAX_NORM,
    SIZE,
    STEPS,
    assert_within,
    drawn,
    followed,
    needed,
    statistics_of,
    trained,
    tree_of,
)
from tests.rounded import unit_of

NAMES = [
    "adam",
    "micro_adam",
    "micro_adam_var",
    "micro_adam_msq",
    "sign_sgd",
    "sign_ema",
    "micro_sign_sgd",
]
ADAMS = NAMES[:4]
PRECISIONS = [jnp.float32, jnp.float64]
PEAK, WARMUP = 0.02, 10
OPTIONS = {
    "b1": 0.8,
    "b2": 0.95,
    "eps": 1e-4,
    "eps_root": 1e-6,
    "weight_decay": 0.01,
    "clip_norm": 7.5,
}


def reference_of(name, learning_rate, **options):
    return getattr(references, name)(learning_rate, **options)


def optimizer_of(name, learning_rate, **options):
    return getattr(ho, name)(learning_rate, **options)


def options_of(name):
    return OPTIONS if name in ADAMS else {k: OPTIONS[k] for k in ("b1", "weight_decay")}


def of_paper(name, dtype, **options):
    """The optimizer and its reference with the paper's schedule; optax computes in float32."""
    wave = references.warm_cosine(PEAK, WARMUP, STEPS, 2 * unit_of(dtype))
    rates = np.array([wave(count).value for count in range(STEPS)])
    of_optax = optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, STEPS)
    schedule = of_optax if dtype == jnp.float32 else lambda count: jnp.asarray(rates)[count]
    return optimizer_of(name, schedule, **options), reference_of(name, wave, **options)


@pytest.mark.first(2)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_paper_with_defaults(name, dtype):
    assert_follows(optimizer_of(name, 0.01), reference_of(name, 0.01), dtype)


@pytest.mark.first(2)
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_paper_with_a_schedule_and_every_option(name, dtype):
    assert_follows(*of_paper(name, dtype, **options_of(name)), dtype)


def assert_follows(optimizer, reference, dtype):
    """After every step within what rounding explains."""
    with jax.enable_x64(dtype == jnp.float64):
        found = trained(optimizer, drawn(), dtype)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(found))
    assert_within(found, followed(reference, drawn(), dtype), dtype)


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


@pytest.mark.first(1)
@pytest.mark.parametrize("name", [*NAMES, "dp_sgd"])
def test_they_are_one_batch(name):
    """Their sizes are known at run time alone, as with counted padding, and take no precision."""
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


PARAMS = tree_of(LEAVES, jnp.float32)
FOUND = statistics_of([x[0] for x in drawn()], jnp.float32)
OPTIMIZERS = {name: optimizer_of(name, 0.01) for name in NAMES} | {
    "dp_sgd": ho.dp_sgd(0.1, MAX_NORM, 1.0, seed=0)
}
NEEDY = [
    (name, statistic) for name, of in OPTIMIZERS.items() for statistic in of.required_statistics
]


@pytest.mark.parametrize(("name", "statistic"), NEEDY)
def test_a_missing_statistic_is_named(name, statistic):
    """It is an error, and not other training."""
    own = OPTIMIZERS[name]
    for optimizer in (own, optax.chain(optax.clip(1.0), own), ho.multi_steps(own, 2)):
        with pytest.raises(TypeError, match=statistic):
            optimizer.update(FOUND["gradient"], optimizer.init(PARAMS), PARAMS, batch_size=SIZE)
