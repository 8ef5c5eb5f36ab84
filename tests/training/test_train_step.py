"""Train steps in real runs: each follows the reference, with every example's gradient by vmap."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery as hs
from tests.optimizers.test_optimizers import optimizer_of, reference_of
from tests.products import covering
from tests.rounded import Rounded, unit_of
from tests.training.training_models import SIZE, TRAININGS

STEPS = 30
# MicroAdamMSQ trains with clipping and a large eps; its steps are huge where the estimate of mu**2
# is not positive.
OPTIONS = {
    "adam": {"learning_rate": 0.02},
    "micro_adam": {"learning_rate": 0.05},
    "micro_adam_var": {"learning_rate": 0.05},
    "micro_adam_msq": {"learning_rate": 0.02, "eps": 0.1, "clip_norm": 0.5},
    "micro_sign_sgd": {"learning_rate": 0.05},
}
# What an entry of an example's gradient may be off, in units of the greatest such entry: more than
# the length of the longest path of sums and products through the model.
ROUNDINGS = 128


@cache
def by_vmap(loss):
    def alone(params, *example):
        return jax.grad(loss)(params, *(x[None] for x in example))

    return jax.jit(jax.vmap(alone, (None, 0, 0)))


def each_gradient(training, params, t):
    """Every example's gradient in float64: a list over the examples of lists of arrays."""
    with jax.enable_x64(True):
        found = by_vmap(training.loss)(
            on_device(params, jnp.float64), *on_device(training.batch(t), jnp.float64)
        )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(found)]
    return [[leaf[b] for leaf in leaves] for b in range(SIZE)]


def seen():
    """Passes updates on, and keeps in its state the second moment that it was given."""

    def update(updates, state, params=None, *, second_moment=None, **given):
        return updates, second_moment

    return optax.GradientTransformationExtraArgs(
        lambda params: jax.tree.map(jnp.zeros_like, params), update
    )


def on_device(tree, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype if x.dtype.kind == "f" else None), tree)


RUNS = covering(["mlp"], list(OPTIONS), [jnp.float32, jnp.float64])


@pytest.mark.parametrize(
    ("model", "name", "dtype"), [*RUNS, ("language model", "micro_adam", jnp.float64)]
)
def test_a_run_follows_the_reference(model, name, dtype):
    training, reference = TRAININGS[model], reference_of(name, **OPTIONS[name], weight_decay=1e-3)
    with jax.enable_x64(dtype == jnp.float64):
        optimizer = optimizer_of(name, **OPTIONS[name], weight_decay=1e-3)
        squared = "second_moment" in optimizer.required_statistics
        optimizer = optax.chain(seen(), optimizer) if squared else optimizer
        step = hs.train_step(training.loss, optimizer, batch_argnums=(1, 2))
        params = on_device(training.params, dtype)
        state, losses = optimizer.init(params), []
        for t in range(STEPS):
            before = jax.tree.map(np.asarray, params)
            params, state, metrics = step(params, state, *on_device(training.batch(t), dtype))
            examples = each_gradient(training, before, t)
            assert_followed(reference, before, examples, params, dtype)
            if squared:
                assert_second_moment(state[0], examples, dtype)
            losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def assert_followed(reference, before, examples, params, dtype):
    unit = 2 * unit_of(dtype)
    greatest = [max(abs(g).max() for g in leaves) for leaves in zip(*examples, strict=True)]
    rounded = [
        [
            Rounded(g, np.full_like(g, ROUNDINGS * unit * most), unit)
            for g, most in zip(example, greatest, strict=True)
        ]
        for example in examples
    ]
    exact = [Rounded(x := np.float64(leaf), 0 * x, unit) for leaf in jax.tree.leaves(before)]
    for leaf, want in zip(jax.tree.leaves(params), reference(exact, rounded), strict=True):
        assert leaf.dtype == dtype
        assert (abs(np.float64(leaf) - want.value) <= want.error).all()


def assert_second_moment(found, examples, dtype):
    for leaf, each in zip(jax.tree.leaves(found), zip(*examples, strict=True), strict=True):
        expected = np.mean(np.square(each), 0)
        np.testing.assert_allclose(
            leaf, expected, rtol=0, atol=ROUNDINGS * unit_of(dtype) * np.square(each).max()
        )
