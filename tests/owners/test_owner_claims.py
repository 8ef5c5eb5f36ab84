"""Claims of owners by probe: what they say of every value is held against executing the function
with examples changed.

Owned: changing example b moves elements of owner b only. Summed: the mixed second difference
vanishes.
"""

import itertools

import numpy as np
import pytest

from hlo_surgery.module import Module
from hlo_surgery.passes.example_axes import sharding_rules
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.classes import Mixed, Owned, Summed
from tests.claim_rows import PER_EXAMPLE, SHARED, SUMMED, TRAPS, UNTOLD
from tests.owners.test_labels import elements, labelled
from tests.test_claims import Analysed, exchanged, source, vanishes


class Probed(Analysed):
    """A row's classes by owners, value by value, and its function with every value returned."""

    def __init__(self, row):
        code = mlir.parse(source(row))
        main = mlir.main_function(code)
        block, axes = mlir.body(main), {i + 1: axis for i, axis in row.axes.items()}
        first, axis = next(iter(axes.items()))
        self.size = mlir.shape(block.arguments[first])[axis]
        sharding_rules.populate(code)
        self.owners = find_owners(main, axes, self.size, [])
        sharding_rules.strip(code)
        values = [r for op in mlir.operations(block)[:-1] for r in op.results]
        self.classes = [self.owners.of(v) for v in values]
        mlir.set_results(main, values, [])
        self.row, self.module = row, Module(code)


def assert_claims_hold(probed, seed=0):
    assert not probed.owners.data, "mixed data is constant by definition: no probe can tell"
    rng = np.random.default_rng(seed)
    arrays, others = probed.draw(rng), probed.draw(rng)
    others[0] = arrays[0]
    plain = probed.run(arrays)
    examples = range(probed.size)
    changed = [probed.run(exchanged(probed.row, arrays, others, [b])) for b in examples]
    for b, moved in enumerate(changed):
        for known, before, after in zip(probed.classes, plain, moved, strict=True):
            if isinstance(known, Owned):
                others_own = elements(known.labels).reshape(before.shape) != b
                np.testing.assert_array_equal(before[others_own], after[others_own])
    for a, b in itertools.combinations(examples, 2):
        both = probed.run(exchanged(probed.row, arrays, others, [a, b]))
        for known, *corners in zip(
            probed.classes, plain, changed[a], changed[b], both, strict=True
        ):
            assert not isinstance(known, Summed) or vanishes(*corners)


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_rows_of_examples_are_owned(name):
    probed = Probed(PER_EXAMPLE[name])
    last = probed.classes[-1]
    assert isinstance(last, Owned)
    assert last.labels.varies
    assert_claims_hold(probed)


@pytest.mark.parametrize("name", SUMMED)
def test_sums_are_summed(name):
    probed = Probed(SUMMED[name])
    assert isinstance(probed.classes[-1], Summed)
    assert_claims_hold(probed)


@pytest.mark.parametrize("name", SHARED)
def test_what_no_example_reaches_is_nobodys(name):
    probed = Probed(SHARED[name])
    last = probed.classes[-1]
    assert isinstance(last, Owned)
    assert last.is_shared
    assert_claims_hold(probed)


@pytest.mark.parametrize("name", [*TRAPS, *UNTOLD])
def test_what_only_looks_separable_is_mixed(name):
    assert isinstance(Probed({**TRAPS, **UNTOLD}[name]).classes[-1], Mixed)


def test_a_false_claim_is_seen():
    probed = Probed(next(iter(PER_EXAMPLE.values())))
    probed.classes[-1] = Owned(labelled(np.full(elements(probed.classes[-1].labels).shape, 0)))
    with pytest.raises(AssertionError):
        assert_claims_hold(probed)
