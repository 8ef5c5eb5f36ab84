"""Row sums: what an op adds up, and what the steps of a loop write, of single values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_surgery.module import load
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.shares.row_sums import rows_summed, written_entry

B, D, STEPS = 4, 2, 3
X = np.ones((B, D), np.float32)


@pytest.fixture
def found():
    """Of a function of the examples: owners, and what it returns. The module outlives the test."""
    held = []

    def of(function):
        code = mlir.clone(load(jax.jit(function).lower(X).as_text()).code)
        held.append(code)
        normalize(code)
        sharding_rules.populate(code)
        main = mlir.main_function(code)
        (value,) = mlir.operands(mlir.return_operation(mlir.body(main)))
        return find_owners(main, {0: 0}, B, []), value

    return of


def written_at(place):
    """A stack with an entry for each step, which writes at place(t)."""

    def stack(x):
        def step(t, entries):
            return lax.dynamic_update_slice(entries, jnp.tanh(x[:1] * t), (place(t), 0))

        return lax.fori_loop(0, STEPS, step, jnp.zeros((STEPS, D)))

    return stack


def test_each_step_writes_an_entry(found):
    owners, stack = found(written_at(lambda t: STEPS - 1 - t))
    entry = written_entry(owners, stack)
    assert entry is not None
    assert mlir.shape(entry) == (1, D)


@pytest.mark.parametrize("place", [lambda t: 0, lambda t: jnp.minimum(t, 1)])
def test_entries_that_are_written_over_stand_for_no_step(found, place):
    owners, stack = found(written_at(place))
    assert written_entry(owners, stack) is None


@pytest.mark.parametrize("padding", [0, 2, 4])
def test_rows_of_nobody_among_the_examples_do_not_count(found, padding):
    owners, total = found(lambda x: jnp.pad(jnp.tanh(x), ((0, padding), (0, 0))).sum(0))
    assert rows_summed(owners, mlir.defining_operation(total), 0) == pytest.approx(B)
