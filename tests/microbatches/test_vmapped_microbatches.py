"""Microbatches of several groups at a time, as `jax.vmap` of a loop over them has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

GROUPS, STEPS, D, F = 2, 4, 3, 4
rng = np.random.default_rng(0)
W = jnp.asarray(rng.normal(size=(D, F)), jnp.float32)
X = jnp.asarray(rng.normal(size=(GROUPS * STEPS, D)), jnp.float32)
ASKED = {"each": hs.per_example(), "norms": hs.norms(), "square": hs.second_moment()}


def one(w, row):
    return jnp.sum(jnp.tanh(row @ w) ** 2)


def of_group(w, rows):
    def step(total, row):
        return total + jax.grad(one)(w, row), None

    return lax.scan(step, jnp.zeros_like(w), rows)[0] / STEPS


def mean_of_groups(w, x):
    return jax.vmap(of_group, (None, 0))(w, x.reshape(GROUPS, STEPS, D)).mean(0)


def mean_of_turned_groups(w, x):
    return jax.vmap(of_group, (None, 1))(w, x.reshape(STEPS, GROUPS, D)).mean(0)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize("gradient", [mean_of_groups, mean_of_turned_groups])
def test_one_example_of_each_group_a_step(gradient, strategy):
    f = hs.rewrite(gradient, batch_argnums=1, statistics=ASKED, strategy=strategy)
    plain, found = f(W, X)
    each = jax.vmap(jax.grad(one), (None, 0))(W, X)
    close = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(plain, each.mean(0), **close)
    np.testing.assert_allclose(found["each"], each, **close)
    np.testing.assert_allclose(found["norms"], jnp.linalg.norm(each, axis=(1, 2)), **close)
    np.testing.assert_allclose(found["square"], (each**2).mean(0), **close)


def decayed(w, x):
    """Momentum: the sum so far counts less from step to step."""

    def step(total, row):
        return 0.5 * total + jax.grad(one)(w, row), None

    groups = x.reshape(GROUPS, STEPS, D)
    return jax.vmap(lambda rows: lax.scan(step, jnp.zeros_like(w), rows)[0])(groups).mean(0)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_sums_that_decay_from_step_to_step(strategy):
    """A row of zeros adds nothing, so that what an example adds is what it adds alone."""
    f = hs.rewrite(decayed, batch_argnums=1, statistics=ASKED, strategy=strategy)
    each, size = f(W, X)[1]["each"], len(X)
    for b in range(size):
        alone = size * decayed(W, jnp.where(jnp.arange(size)[:, None] == b, X, 0))
        np.testing.assert_allclose(each[b], alone, rtol=1e-4, atol=1e-6)


def looked_at(w, x):
    """What was added up so far goes into the next example's gradient."""

    def step(total, row):
        return total + jax.grad(one)(w + total, row), None

    groups = x.reshape(GROUPS, STEPS, D)
    run = jax.vmap(lambda rows: lax.scan(step, jnp.zeros_like(w), rows)[0])
    return run(groups).mean(0)


def squared_behind(w, x):
    return (jax.vmap(of_group, (None, 0))(w, x.reshape(GROUPS, STEPS, D)) ** 2).mean(0)


def scaled_by_its_example(w, x):
    """The sum so far is scaled by each group's own example."""

    def step(total, row):
        return total * row[0] + jax.grad(one)(w, row), None

    groups = x.reshape(GROUPS, STEPS, D)
    return jax.vmap(lambda rows: lax.scan(step, jnp.zeros_like(w), rows)[0])(groups).mean(0)


@pytest.mark.parametrize("gradient", [looked_at, squared_behind, scaled_by_its_example])
def test_groups_whose_examples_meet_are_refused(gradient):
    with pytest.raises(hs.Refusal):
        hs.rewrite(gradient, batch_argnums=1, statistics=ASKED)(W, X)
