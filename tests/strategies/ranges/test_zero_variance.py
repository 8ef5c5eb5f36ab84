"""MicroAdamVar and MicroAdamMSQ where the estimate is zero, the gradient not: bounded steps, if a
bound is asked for.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

RATE, STEPS = 0.01, 3
BOUND = {"max_ratio": 32.0}


def loss(params, x):
    """All examples have the same gradient for the bias; what decays has no examples' at all."""
    return jnp.mean(x @ params["w"] + params["b"]) + jnp.sum(params["decays"] ** 2)


def trained(optimizer, x):
    params = {"w": jnp.ones(3), "b": jnp.float32(0.37), "decays": jnp.array([1e-15, 1.0, 1e15])}
    step, state = hs.train_step(loss, optimizer), optimizer.init(params)
    runs = [jax.tree.map(np.asarray, params)]
    for _ in range(STEPS):
        params, state, _ = step(params, state, x)
        runs.append(jax.tree.map(np.asarray, params))
    return runs


@pytest.mark.parametrize("name", ["micro_adam_var", "micro_adam_msq"])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_equal_and_opposite_examples(name, scale):
    """Equal ones have no variance; the estimate of mu**2 from nearly opposite ones is negative."""
    x = scale * jnp.array([[1.0, 1.0, 2.0], [1.0, -1.0, 2.0], [1.0, 1.0, 2.0], [1.0, -0.9, 2.0]])
    for before, after in pairwise(trained(getattr(ho, name)(RATE, **BOUND), x)):
        assert (abs(after["w"] - before["w"]) <= 32 * RATE * 1.001).all()


@pytest.mark.parametrize("name", ["micro_adam_var", "micro_adam_msq"])
@pytest.mark.parametrize("sizes", [(4, 4, 1), (1, 4, 1), (1, 1, 1)])
def test_a_batch_of_one_example_moves_the_mean_alone(name, sizes):
    """As the short last batch of an epoch may be; where no batch had two yet, no step is taken."""
    rng = np.random.default_rng(1)
    params = {"w": jnp.ones(3), "b": jnp.float32(0.37), "decays": jnp.ones(2)}
    optimizer = getattr(ho, name)(RATE, **BOUND)
    step, state = hs.train_step(loss, optimizer), optimizer.init(params)
    for size in sizes:
        old, before = jax.tree.map(np.asarray, (state[0], params))
        params, state, _ = step(params, state, rng.normal(size=(size, 3)).astype(np.float32))
        assert (np.abs(before["w"] - params["w"]) <= 32 * RATE * 1.001).all()
        assert ((params["w"] != before["w"]) == (state[0].v.weight > 0)).all()
        if size == 1:
            jax.tree.map(np.testing.assert_array_equal, state[0].v, old.v)
