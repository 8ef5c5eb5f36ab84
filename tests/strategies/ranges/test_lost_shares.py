"""Means of cotangents that are no normal numbers, and steps where a variance is zero."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

SIZE = 8
W = jnp.zeros((5, 6))
STRATEGIES = ["auto", "ghost", "lift", "loop", "square"]
LARGE, SMALL = [1.5e38, 1.5e36, 1e25], [1e-37, 3e-37, 2e-36]


def dense(w, x, c):
    return jnp.mean(jnp.sum((x @ w) * c, -1))


def sequences(w, x, c):
    return jnp.mean(jnp.sum(jnp.einsum("btd,df->btf", x, w) * c, (1, 2)))


def operands(loss, large, small):
    draw, positions = np.random.default_rng(0).uniform, () if loss is dense else (3,)
    x, c = (draw(0.3, 1, (SIZE, *positions, n)) for n in (5, 6))
    return np.float32(large * x), np.float32(small * c)


def each(loss, x, c):
    """The gradients by batches of one, which lose nothing."""
    one = jax.jit(jax.vmap(lambda x, c: jax.grad(loss)(W, x[None], c[None])))
    return np.float64(one(x, c))


def norms(g):
    return np.sqrt((g**2).sum((1, 2)))


ASKED = {
    "norms": (hs.norms(), norms),
    "squares": (hs.second_moment(), lambda g: (g**2).mean(0)),
    "variance": (hs.variance(), lambda g: g.var(0, ddof=1)),
}


def found_by(loss, name, strategy, x, c):
    how = {"batch_argnums": (1, 2), "statistics": ASKED[name][0], "strategy": strategy}
    try:
        return np.float64(hs.grad(loss, **how)(W, x, c)[1])
    except ValueError:
        pytest.skip("the strategy does not apply")


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("loss", [dense, sequences])
def test_right_or_nan(loss, strategy, name):
    told = []
    for large in LARGE:
        for small in SMALL:
            x, c = operands(loss, large, small)
            found, wanted = found_by(loss, name, strategy, x, c), ASKED[name][1](each(loss, x, c))
            right = np.isclose(found, wanted, rtol=1e-5, atol=1e-35)
            assert np.all(right | np.isnan(found)), (large, small)
            told.append(np.isnan(found).all())
    assert any(told)


@pytest.mark.parametrize(("large", "small"), [(1.0, 1e-38), (1e18, 0.0), (1e38, 1e-20)])
@pytest.mark.parametrize("name", ["norms", "squares"])
def test_ordinary_zeros_and_large_operands_stay_numbers(name, large, small):
    x, c = operands(dense, large, small)
    assert np.isfinite(found_by(dense, name, "auto", x, c)).all()


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
