"""Random programs with other sizes that are the batch's: statistics are exact, or refused."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import hlo_surgery as hs
from tests.equivalence.test_equivalence import (
    EXPECTED,
    STATISTICS,
    assert_gradient,
    batch_arguments,
    expected_of,
)
from tests.equivalence.test_generator import on_host, precision, room_for, scale
from tests.equivalence.test_joint_equivalence import assert_within
from tests.equivalence.test_joint_equivalence import expected as joint_expected
from tests.equivalence.test_joint_equivalence import statistics as joint_statistics
from tests.programs.layers_data import SUMS_OF_DATA
from tests.programs.program_strategies import coincident_programs, plannings
from tests.programs.random_programs import data, gradient, loss, parameters, reference

EDGES = np.array([-1.0, -0.1, 0.05, 0.3, 1.0])
CLIP = 0.5


def counted(g):
    return np.histogram(g, EDGES)[0]


def near_edges(g, d):
    """How many entries may fall on the other side of an edge, for each bin."""
    near = [np.sum(np.abs(g - edge) <= d) for edge in EDGES]
    return np.array([a + b for a, b in pairwise(near)])


MORE = {
    "mean_cos": hs.mean_of(jnp.cos),
    "bounded": hs.mean_of_clipped_entries(0.3),
    "polynomial": hs.polynomial([0.5, 1.0, -2.0]),
    "combination": hs.linear_combination([(2.0, hs.second_moment()), (-1.0, hs.mean_abs())]),
    "histogram": hs.histogram(EDGES.tolist()),
}
MORE_EXPECTED = {
    "mean_cos": (lambda g: np.mean(np.cos(g), 0), lambda g, d: d),
    "bounded": (lambda g: np.mean(np.clip(g, -0.3, 0.3), 0), lambda g, d: d),
    "polynomial": (
        lambda g: np.mean(0.5 + g - 2 * g**2, 0),
        lambda g, d: np.mean(d * (1 + 4 * (np.abs(g) + d)), 0) + d,
    ),
    "combination": (
        lambda g: np.mean(2 * g**2 - np.abs(g), 0),
        lambda g, d: np.mean(d * (1 + 4 * (np.abs(g) + d)), 0),
    ),
    "histogram": (counted, near_edges),
}


def private_expected(examples, d):
    """The clipped mean, and how far it may move: each share by twice what its gradient does."""
    flat = np.concatenate([g.reshape(len(g), -1) for g in jax.tree.leaves(examples)], 1)
    norms = np.linalg.norm(flat, axis=1)
    moved = np.sqrt(flat.shape[1]) * d + 1e-3 * norms
    weights = np.minimum(1, CLIP / np.maximum(norms, 1e-30))
    lost = np.where(norms + moved > CLIP, weights * moved / np.maximum(norms, CLIP), 0)

    def leaf(g):
        w, m = (x.reshape(-1, *[1] * (g.ndim - 1)) for x in (weights, lost))
        return np.mean(w * g, 0), np.mean((w + m) * d + 2 * m * np.abs(g), 0)

    return jax.tree.map(leaf, examples)


def pairs_of(name, examples, d):
    """A statistic's value and how far it may move when the examples' gradients move by d."""
    if name == "clipped_mean":
        return private_expected(examples, d)
    if name in EXPECTED:
        moved = EXPECTED[name][1]
        values = expected_of(name, examples)
        return jax.tree.map(lambda value, g: (value, moved(g, d)), values, examples)
    if name in MORE_EXPECTED:
        of, moved = MORE_EXPECTED[name]
        return jax.tree.map(lambda g: (of(g), moved(g, d)), examples)
    return joint_expected(examples, d)[name]


def statistics_of(program, first):
    """Two statistics, by a number, of the list of all."""
    joint = joint_statistics(program, True)
    everything = {**STATISTICS, **MORE, **joint, "clipped_mean": hs.clipped_mean(CLIP)}
    names = list(everything)
    step = 1 + first // len(names) % 5
    chosen = [names[(first + i * step) % len(names)] for i in range(2)]
    return {name: everything[name] for name in chosen}


def rests_on_data(program):
    """Whether a number of the whole batch is in the loss: no example's influence is bounded."""
    sums = any(step.name in SUMS_OF_DATA for step in program.steps)
    return sums or program.standardised or program.weighting == "normalised"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(coincident_programs, plannings, st.integers(0, 2**16))
def test_exact_or_refused(program, planning, first):
    asked = statistics_of(program, first)
    with room_for(program):
        params, batch = parameters(program), data(program)
        rewritten = hs.grad(loss(program), **batch_arguments(program), statistics=asked, **planning)
        try:
            gradients, found = rewritten(params, *batch)
        except hs.Refusal as refusal:
            event(f"refused: {refusal.why}"[:110])
            return
        event("exact")
        assert not ("clipped_mean" in asked and rests_on_data(program)), "its bound is void"
        examples = on_host(jax.jit(reference(program))(params, *batch))
        assume(all(np.isfinite(g).all() for g in jax.tree.leaves(examples)))
        distance = precision(program) * scale(examples)
        plain = on_host(jax.jit(gradient(program))(params, *batch))
        assert_gradient(program, gradients, plain, examples)
        for name in asked:
            assert_within(name, found[name], pairs_of(name, examples, distance))
