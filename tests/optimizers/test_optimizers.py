"""The optimizers on drawn examples' gradients: against the paper's references in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho
from tests.optimizers import optimizer_references as references
from tests.optimizers.optimizer_runs import STEPS, assert_within, drawn, followed, norms_of, trained
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
EPS = float(jnp.finfo(jnp.float32).eps)


def reference_of(name, learning_rate, **options):
    return getattr(references, name)(learning_rate, **options)


def optimizer_of(name, learning_rate, **options):
    return getattr(ho, name)(learning_rate, **options)


def options_of(name):
    return OPTIONS if name in ADAMS else {k: OPTIONS[k] for k in ("b1", "weight_decay")}


def of_paper(name, dtype, **options):
    """The optimizer and its reference with the paper's schedule; optax computes in float32,
    whatever is enabled.
    """
    wave = references.warm_cosine(PEAK, WARMUP, STEPS, 2 * unit_of(dtype))
    rates = np.array([wave(count).value for count in range(STEPS)])
    of_optax = optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, STEPS)
    schedule = of_optax if dtype == jnp.float32 else lambda count: jnp.asarray(rates)[count]
    return optimizer_of(name, schedule, **options), reference_of(name, wave, **options)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_paper_with_defaults(name, dtype):
    assert_follows(optimizer_of(name, 0.01), reference_of(name, 0.01), dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", ["micro_adam_var", "micro_adam_msq"])
def test_with_steps_of_at_most_two_learning_rates(name, dtype):
    options = {"max_ratio": 2.0}
    assert_follows(optimizer_of(name, 0.01, **options), reference_of(name, 0.01, **options), dtype)


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


def test_the_drawn_runs_clip_in_some_steps_and_meet_negative_estimates():
    norms = norms_of([x.mean(1, keepdims=True) for x in drawn()])
    assert 10 < np.sum(norms > OPTIONS["clip_norm"]) < STEPS - 10
    seen = []
    list(followed(references.micro_adam_msq(0.01, seen=seen), drawn(), jnp.float64))
    assert 0.1 < np.mean([np.any(v < 0) for v in seen]) < 0.9


def test_negative_estimates_of_msq_stay_in_the_average():
    """Of g**2 = 1 and mean square 4, then 9 and 9, with B = 2: mu**2 is -2, then 9; the EMA of b2 =
    0.9 is below 0.
    """
    optimizer = ho.micro_adam_msq(1.0, b1=0.0, b2=0.9, max_ratio=32)
    state, found = optimizer.init(jnp.float32(0)), []
    for g, squares in [(1.0, 4.0), (3.0, 9.0)]:
        moment = jnp.float32(squares)
        update, state = optimizer.update(
            jnp.float32(g), state, jnp.float32(0), second_moment=moment, batch_size=2
        )
        found.append(update)
    # 0.9 * 0.1 * -2 + 0.1 * 9 = 0.72, over 1 - 0.9**2.
    np.testing.assert_allclose(found, [-32, -3 / (np.sqrt(0.72 / 0.19) + 1e-6)], rtol=16 * EPS)
