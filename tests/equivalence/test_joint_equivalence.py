"""Random programs: norms, weighted means, inner products as of one example's gradient at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hlo_surgery as hs
from tests.by_definition import flat
from tests.equivalence.test_equivalence import assert_gradient, batch_arguments, unless_pooled
from tests.equivalence.test_generator import on_host, precision, room_for, scale
from tests.programs.program_strategies import plannings, programs
from tests.programs.random_programs import data, gradient, loss, parameters, reference

# What is left of a sum over pairs of positions that cancels, relative to the norm; beyond it, the
# examples' own gradients are taken (passes/strategies/einsums/ghost.py).
CANCELLED = 1e-3


def clip(norms):
    return 1 / jnp.maximum(norms, 1)


def cosines(tree):
    """Of a gradient, or of one parameter's: a number that rests on all its elements."""
    return sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(tree))


def statistics(program, weighted):
    """`weighted`: also weighted sums, which no scan over layers has inside."""
    asked = {
        "norms": hs.norms(),
        "each": hs.norms("parameter"),
        "squares": hs.second_moment(),
        "one": hs.norms(ord=1),
        "cosines": hs.sum_of(cosines),
    }
    if weighted:
        asked |= {
            "clipped": hs.weighted_mean(clip),
            "clipped squares": hs.weighted_second_moment(clip),
            "cosines of all": hs.sum_of(cosines, "global"),
            "inner": hs.inner_products(),
            "gram": hs.gram(),
        }
    return asked | ({"variance": hs.variance()} if program.batch > 1 else {})


def expected(examples, d):
    """Each statistic's value, and how far it may move when a gradient's entries move by d."""
    g = flat(examples)
    norms, moved = np.linalg.norm(g, axis=1), norm_moves(g, d)
    weights = 1 / np.maximum(norms, 1)
    moved_weights = np.where(norms + moved > 1, weights**2 * moved, 0)
    sums = np.abs(g).sum(1)

    def clipped(leaf):
        w, m = (x.reshape(-1, *[1] * (leaf.ndim - 1)) for x in (weights, moved_weights))
        return np.mean(w * leaf, 0), np.mean((w + m) * d + m * np.abs(leaf), 0)

    def clipped_squares(leaf):
        w, m = (x.reshape(-1, *[1] * (leaf.ndim - 1)) for x in (weights, moved_weights))
        square, most = (w * leaf) ** 2, ((w + m) * (np.abs(leaf) + d)) ** 2
        return square.mean(0), (most - square).mean(0)

    def summed_cosines(leaf):
        # Of numbers near 1, which float32 sums up: more than gradients move where all are small.
        return np.cos(leaf).sum(), leaf.size * (d + 1e-5)

    def variance(leaf):
        return np.var(leaf, axis=0, ddof=1), 4 * np.max(2 * np.abs(leaf) * d + d**2, axis=0)

    def squares(leaf):
        return np.mean(leaf**2, 0), np.mean(2 * np.abs(leaf) * d + d**2, 0)

    def each(leaf):
        rows = leaf.reshape(len(leaf), -1)
        return np.linalg.norm(rows, axis=1), norm_moves(rows, d)

    entries = g.shape[1]
    mean = np.abs(g.mean(0)).sum()
    return {
        "norms": (norms, moved),
        "each": jax.tree.map(each, examples),
        "squares": jax.tree.map(squares, examples),
        "one": (sums, entries * d),
        "clipped": jax.tree.map(clipped, examples),
        "clipped squares": jax.tree.map(clipped_squares, examples),
        "cosines": jax.tree.map(summed_cosines, examples),
        "cosines of all": summed_cosines(g),
        "inner": (g @ g.mean(0), d * (sums + mean) + entries * d**2),
        "gram": (g @ g.T, d * (sums[:, None] + sums) + entries * d**2),
        "variance": jax.tree.map(variance, examples) if len(g) > 1 else None,
    }


def norm_moves(rows, d):
    return np.sqrt(rows.shape[1]) * d + CANCELLED * np.linalg.norm(rows, axis=1)


def assert_within(name, found, wanted):
    pairs = jax.tree.leaves(wanted, is_leaf=lambda x: isinstance(x, tuple))
    for actual, (value, moves) in zip(jax.tree.leaves(on_host(found)), pairs, strict=True):
        assert actual.shape == value.shape, name
        assert np.all(np.abs(actual - value) <= moves), (
            f"{name}: {actual} is not {value} within {moves}"
        )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(programs, plannings, st.booleans())
def test_joint_statistics_equal_one_example_at_a_time(program, planning, weighted):
    with room_for(program):
        params, batch = parameters(program), data(program)
        asked = statistics(program, weighted)
        rewritten = hs.grad(loss(program), **batch_arguments(program), statistics=asked, **planning)
        gradients, found = unless_pooled(program, lambda: rewritten(params, *batch))
        examples = on_host(jax.jit(reference(program))(params, *batch))
        assert_gradient(
            program, gradients, on_host(jax.jit(gradient(program))(params, *batch)), examples
        )
        wanted = expected(examples, precision(program) * scale(examples))
        for name, statistic in found.items():
            assert_within(name, statistic, wanted[name])
