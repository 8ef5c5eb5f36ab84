"""Random programs: every statistic as of an example at a time; where examples meet, a refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import hlo_surgery as hs
from tests.equivalence.test_generator import (
    on_host,
    planted,
    precision,
    room_for,
    scale,
    truly_mixes,
)
from tests.programs.program_strategies import mixing_programs, plannings, programs
from tests.programs.random_mixing import MIXING_GRADIENTS, MIXING_LAYERS, MIXING_LOSSES
from tests.programs.random_programs import data, gradient, in_axes, loss, parameters, reference
from tools.exactness.projections_by_definition import projections_of

BATCHES = 3
PROJECTED, SEED = 2, 5

STATISTICS = {
    "second_moment": hs.second_moment(),
    "mean_abs": hs.mean_abs(),
    "mean_power": hs.mean_power(3),
    "mean_tanh": hs.mean_of(jnp.tanh),
    "mean_sign": hs.mean_sign(),
    "per_example": hs.per_example(),
    "projected": hs.projected(PROJECTED, SEED),
}

# Each statistic of gradients g, and how far it moves when they do by at most d: d times the slope.
EXPECTED = {
    "second_moment": (
        lambda g: np.mean(g**2, axis=0),
        lambda g, d: np.mean(2 * np.abs(g) * d + d**2, axis=0),
    ),
    "mean_abs": (lambda g: np.mean(np.abs(g), axis=0), lambda g, d: d),
    "mean_power": (
        lambda g: np.mean(g**3, axis=0),
        lambda g, d: np.mean(3 * d * (np.abs(g) + d) ** 2, axis=0),
    ),
    "mean_tanh": (lambda g: np.mean(np.tanh(g), axis=0), lambda g, d: d),
    # A gradient within rounding of zero has either sign: each moves the mean by up to 2/B.
    "mean_sign": (
        lambda g: np.mean(np.sign(g), axis=0),
        lambda g, d: 1e-6 + 2 * np.mean(np.abs(g) <= d, axis=0),
    ),
    "per_example": (lambda g: g, lambda g, d: d),
    # With signs of the gradient's place among all. Rounding of all elements may add up.
    "projected": (None, lambda g, d: g[0].size * d / PROJECTED**0.5),
}


def batch_arguments(program):
    axes = in_axes(program)
    return {
        "batch_argnums": tuple(range(1, 1 + len(axes))),
        "in_axes": axes,
        "loss_reduction": program.reduction,
    }


def assert_close(actual, expected, tolerance, what):
    def compare(a, e, t):
        assert a.shape == e.shape, what
        assert np.all(np.abs(a - e) <= t), f"{what}: {a} is not {e} within {t}"

    jax.tree.map(compare, on_host(actual), expected, tolerance)


def expected_of(name, examples):
    if name != "projected":
        return jax.tree.map(EXPECTED[name][0], examples)
    gradients, structure = jax.tree.flatten(examples)
    found = [projections_of(g, PROJECTED, SEED, place) for place, g in enumerate(gradients)]
    return jax.tree.unflatten(structure, found)


def assert_statistics(program, statistics, examples):
    """Every statistic within what the rounding of the examples' gradients allows it."""
    distance = precision(program) * scale(examples)
    for name, found in statistics.items():
        _, moved = EXPECTED[name]
        tolerance = jax.tree.map(lambda g, moved=moved: moved(g, distance), examples)
        assert_close(found, expected_of(name, examples), tolerance, name)


def assert_gradient(program, actual, expected, examples):
    summed = 1 if program.reduction == "mean" else program.batch
    rounding = precision(program) * scale(examples) * summed
    assert_close(actual, expected, jax.tree.map(lambda g: rounding, expected), "gradient")


@given(programs, plannings, st.booleans())
def test_statistics_equal_one_example_at_a_time(program, planning, whole):
    """`whole`: the gradients are asked for as well, so no scan keeps its statistics to itself."""
    asked = {name: s for name, s in STATISTICS.items() if whole or name != "per_example"}
    with room_for(program):
        params = parameters(program)
        plain, by_example = jax.jit(gradient(program)), jax.jit(reference(program))
        rewritten = hs.grad(loss(program), **batch_arguments(program), statistics=asked, **planning)
        for seed in range(BATCHES):
            batch = data(program, seed)
            examples = on_host(by_example(params, *batch))
            grads, statistics = unless_pooled(
                program, lambda batch=batch: rewritten(params, *batch)
            )
            assert_gradient(program, grads, on_host(plain(params, *batch)), examples)
            assert statistics.keys() == asked.keys()
            assert_statistics(program, statistics, examples)


def unless_pooled(program, call):
    """The call's result; a draw is dropped where the README lets it be refused: with a branch, for
    pooled values, and with a parameter that scales a sum of data.
    """
    try:
        return call()
    except hs.Refusal:
        lengths = {length for leaf in jax.tree.leaves(parameters(program)) for length in leaf.shape}
        branches = any(step.name.startswith("branch_on") for step in program.steps)
        assume(not (branches and program.batch in lengths))
        # A parameter times a sum of data, beside examples, is read as a sum of theirs.
        assume(all(step.name != "shifted_by_data" for step in program.steps))
        raise


def assert_refused(program):
    if program.mixing in MIXING_GRADIENTS:
        rewritten = hs.rewrite(
            gradient(program), **batch_arguments(program), statistics=hs.second_moment()
        )
    else:
        rewritten = hs.grad(
            loss(program), **batch_arguments(program), statistics=hs.second_moment()
        )
    with pytest.raises(hs.Refusal):
        rewritten(parameters(program), *data(program))


def shown_to_mix(program):
    """Whether it mixes, as far as XLA runs it: on CPU not some Fourier transforms' layouts."""
    try:
        return truly_mixes(program)
    except jax.errors.JaxRuntimeError as error:
        if "fft_thunk" in str(error):
            return False
        raise


@given(mixing_programs)
def test_mixing_is_refused(program):
    with room_for(program):
        assume(shown_to_mix(program))
        assert_refused(program)


@pytest.mark.first(4)
@pytest.mark.parametrize("name", [*MIXING_LAYERS, *MIXING_LOSSES, *MIXING_GRADIENTS])
def test_each_kind_of_mixing_is_refused(name):
    assert_refused(planted(name))
