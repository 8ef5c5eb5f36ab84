"""The example's decoder: its statistics are those of single texts, by microbatch too.

This folder alone tests the programs in `examples/`, and several processes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from examples.decoder import axes, model, run, text
from examples.decoder.microbatches import by_microbatch

SIZES = model.Sizes(layers=2, width=16, heads=2, hidden=24, length=12)
TEXTS = 4
ROUNDING = 1e-5
LOSS = partial(model.mean_loss, axes.LAYOUTS["fsdp_tensor"])


@pytest.fixture
def problem(monkeypatch):
    """Parameters, texts, and the gradient of each text alone, in float32."""
    monkeypatch.setattr(model, "COMPUTED", jnp.float32)
    params = model.init(jax.random.key(0), SIZES)
    tokens = jnp.asarray(text.rows(0, TEXTS, SIZES.length))
    one = jax.jit(jax.grad(lambda params, text: LOSS(params, text[None])))
    return params, tokens, [jax.device_get(one(params, each)) for each in tokens]


def norm_by_group(gradient):
    squares = {}
    pairs = zip(jax.tree.leaves(model.GROUPS), jax.tree.leaves(gradient), strict=True)
    for group, leaf in pairs:
        squares[group] = squares.get(group, 0) + np.sum(np.square(leaf, dtype=np.float64))
    return {group: np.sqrt(square) for group, square in squares.items()}


@pytest.mark.first(1)
@pytest.mark.parametrize("count", [1, 2])
def test_norms_and_second_moments_are_those_of_single_texts(problem, count):
    params, tokens, each = problem
    statistics = {**run.LOGGED, "second_moment": hs.second_moment()}
    loss = by_microbatch(LOSS, count)
    gradient, found = jax.jit(hs.grad(loss, statistics=statistics))(params, tokens)
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *each)
    squares = jax.tree.map(lambda *leaves: np.mean(np.square(leaves), 0), *each)
    jax.tree.map(assert_close, gradient, mean)
    jax.tree.map(assert_close, found["second_moment"], squares)
    for b, norms in enumerate(map(norm_by_group, each)):
        for group, norm in norms.items():
            assert found["norms"][group][b] == pytest.approx(norm, rel=ROUNDING)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def test_a_batch_rests_on_its_step_alone():
    again, other = text.rows(3, TEXTS, 8), text.rows(4, TEXTS, 8)
    np.testing.assert_array_equal(text.rows(3, TEXTS, 8), again)
    assert again.shape == (TEXTS, 9)
    assert not np.array_equal(again, other)


def test_moments_lie_as_the_parameters_do():
    settings = run.Settings(SIZES, "fsdp")
    mesh = axes.mesh_over(jax.devices()[:1])
    params, state = run.places(settings, mesh)
    adam = state[1][0]
    for moment in (adam.m.average, adam.v.average):
        assert jax.tree.leaves(moment) == jax.tree.leaves(params)
    assert params["embedding"].spec == axes.P(None, "data")
    assert adam.m.weight.spec == axes.P()
