"""Parameters that `optax.MultiSteps` updates every few microbatches: statistics of each one's
examples, at the parameters of its step, and a refusal of what would mix them.

This folder alone tests `hs.train_step`.
"""

import jax
import numpy as np
import optax
import pytest
from jax import lax

import hlo_surgery as hs
from tests.training.training_runs import MLP_PARAMS, SIZE, mlp, mlp_batch

K, CALLS = 3, 6
BATCHES = [mlp_batch(t) for t in range(CALLS)]
OPTIMIZER = optax.MultiSteps(optax.adam(0.1), K)


def one(params, x, y):
    return mlp(params, x[None], y[None])


def norm_of(gradient):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))


def by_hand():
    """The norms [calls, examples] and the last parameters, one example and one call at a time."""
    params, state = MLP_PARAMS, OPTIMIZER.init(MLP_PARAMS)
    norms = []
    for batch in BATCHES:
        own = [jax.grad(one)(params, *(a[b] for a in batch)) for b in range(SIZE)]
        norms.append([norm_of(g) for g in own])
        mean = jax.tree.map(lambda *g: sum(g) / SIZE, *own)
        updates, state = OPTIMIZER.update(mean, state, params)
        params = optax.apply_updates(params, updates)
    return np.array(norms), params


def stacked():
    return tuple(np.stack(arrays) for arrays in zip(*BATCHES, strict=True))


def all_calls(params, optimizer, batches, gradient):
    """Every call in one loop: its parameters, and what the gradient's function returns besides."""

    def call(carry, batch):
        params, state = carry
        found, besides = gradient(params, *batch)
        updates, state = optimizer.update(found, state, params)
        return (optax.apply_updates(params, updates), state), besides

    (params, _), besides = lax.scan(call, (params, optimizer.init(params)), batches)
    return params, besides


def assert_right(params, norms):
    wanted, last = by_hand()
    np.testing.assert_allclose(norms, wanted, rtol=1e-4)
    for actual, value in zip(jax.tree.leaves(params), jax.tree.leaves(last), strict=True):
        # Adam divides by the root of second moments that are as small as the gradient's roundings.
        np.testing.assert_allclose(actual, value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_norms_of_each_call_in_one_loop():
    gradient = hs.grad(mlp, batch_argnums=(1, 2), statistics=hs.norms())
    run = jax.jit(lambda p, batches: all_calls(p, OPTIMIZER, batches, gradient))
    assert_right(*run(MLP_PARAMS, stacked()))


REFUSED = {
    "adam": ("are multiplied", "or have them by hs.grad within it"),
    "sgd": ("of earlier steps", "call hs.grad, or the rewritten function, within the step"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loop_that_updates_parameters_is_told_where_to_ask(name):
    optimizer = optax.MultiSteps(getattr(optax, name)(0.1), K)

    def updated(params, *rows):
        batches = tuple(a.reshape(CALLS, SIZE, *a.shape[1:]) for a in rows)
        gradient = jax.grad(mlp)
        without = lambda p, *batch: (gradient(p, *batch), ())  # noqa: E731
        return all_calls(params, optimizer, batches, without)[0]

    rows = [a.reshape(-1, *a.shape[2:]) for a in stacked()]
    asked = {"batch_argnums": (1, 2), "statistics": hs.norms()}
    with pytest.raises(ValueError, match="updated parameters, no gradient"):
        hs.rewrite(updated, **asked)(MLP_PARAMS, *rows)
    with pytest.raises(hs.Refusal) as refused:
        hs.rewrite(updated, gradients=lambda p: p, **asked)(MLP_PARAMS, *rows)
    why, help = REFUSED[name]
    assert why in refused.value.why
    assert help in refused.value.help
