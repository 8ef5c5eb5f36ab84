"""Traps: each is refused, and names its line, or is exact by numbers. The tables are beside."""

import warnings

import jax
import numpy as np
import pytest

import hlo_surgery as hs
from tests.axes import (  # noqa: F401
    traps_of_constants,
    traps_of_data,
    traps_of_loops,
    traps_of_pairs,
    traps_of_places,
    traps_of_shapes,
    traps_of_sums,
)
from tests.axes.traps import EXACT, MIXED, TRAPS, drawn, expected, second_difference

REFUSED = {name: trap for name, trap in TRAPS.items() if trap.verdict != EXACT}
TAKEN = {name: trap for name, trap in TRAPS.items() if trap.verdict == EXACT}


@pytest.mark.parametrize("trap", REFUSED.values(), ids=REFUSED)
def test_a_trap_is_refused_at_its_line(trap):
    asked = hs.grad(trap.loss, statistics=hs.norms(), **trap.options)
    with pytest.raises(hs.Refusal) as refused:
        asked(trap.weights(), drawn(trap.x, 0))
    assert refused.value.where in (trap.lines() if trap.has_line else {"module"})
    assert refused.value.help


@pytest.mark.parametrize("trap", REFUSED.values(), ids=REFUSED)
def test_a_trap_mixes_as_it_says(trap):
    difference = second_difference(trap)
    assert np.isfinite(difference)
    assert (difference > 1e-6) == (trap.verdict == MIXED)


@pytest.mark.parametrize("trap", TAKEN.values(), ids=TAKEN)
def test_what_only_looks_like_a_trap_is_exact(trap):
    w, x = trap.weights(), drawn(trap.x, 0)
    asked = hs.grad(trap.loss, statistics=hs.per_example(), **trap.options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", hs.BatchConstantWarning)
        gradient, found = asked(w, x)
    lines = [str(each.message).split(": ")[0] for each in said]
    assert bool(lines) == trap.holds_data
    assert trap.lines() >= set(lines)
    own = expected(trap)
    scale = 1 if trap.options.get("loss_reduction") == "sum" else trap.size
    total = jax.tree.map(lambda g: g.sum(0) / scale, own)
    for name, one, other in (("per example", found, own), ("gradient", gradient, total)):
        for mine, its in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            close = {"rtol": trap.rounding, "atol": trap.rounding, "err_msg": name}
            np.testing.assert_allclose(np.asarray(mine, np.float32), its, **close)
