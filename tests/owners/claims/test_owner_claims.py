"""Claims of owners by probe, op by op. The rows are data, in `claim_rows.py`."""

import numpy as np
import pytest

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.classes import Mixed, Owned, Summed
from tests.owners.claims.claim_rows import PER_EXAMPLE, SHARED, SUMMED, TRAPS, UNTOLD
from tests.owners.claims.probes import Probed, assert_claims_hold, mixes, reaches
from tests.owners.labelling.test_labels import elements, labelled


def named(rows):
    return pytest.mark.parametrize("row", rows.values(), ids=rows.keys())


def rows_along(axis, shape, size):
    """The owner of each element of a shape where the examples lie along an axis."""
    numbers = np.arange(shape[axis.dim]) // axis.after % size
    return np.broadcast_to(np.expand_dims(numbers, [*range(1, len(shape) - axis.dim)]), shape)


@named(PER_EXAMPLE)
def test_rows_of_examples_are_owned(row):
    probed = Probed(row)
    last = probed.classes[-1]
    assert isinstance(last, Owned)
    shape = last.labels.shape
    expected = rows_along(row.axis, shape, probed.size)
    np.testing.assert_array_equal(elements(last.labels).reshape(shape), expected)
    assert_claims_hold(probed)


@named(SUMMED)
def test_sums_are_summed(row):
    probed = Probed(row)
    assert isinstance(probed.classes[-1], Summed), probed.classes[-1]
    assert_claims_hold(probed)
    assert reaches(probed), "a sum that no example moves tests nothing"


@named(SHARED)
def test_what_no_example_reaches_is_nobodys(row):
    probed = Probed(row)
    last = probed.classes[-1]
    assert isinstance(last, Owned)
    assert last.is_shared
    assert last.data is None
    assert_claims_hold(probed)


@named(TRAPS)
def test_what_only_looks_separable(row):
    """Accepted wrongly by others. Refused here, and rightly so: the probe sees the examples
    meet.
    """
    probed = Probed(row)
    assert isinstance(probed.classes[-1], Mixed), probed.classes[-1]
    assert any(mixes(probed, seed) for seed in range(32))


@named(UNTOLD)
def test_what_no_probe_tells_apart(row):
    assert isinstance(Probed(row).classes[-1], Mixed)


def test_a_sharding_rule_of_its_author_says_nothing_of_independence():
    """Such rules describe placement."""
    code = mlir.parse(
        """func.func @main(%w: tensor<f64>, %0: tensor<3x4xf64>) -> tensor<3x4xf64> {
        %b = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f64>) -> tensor<3x4xf64>
        %x = stablehlo.multiply %0, %b : tensor<3x4xf64>
        %r = stablehlo.custom_call @centred_over_the_batch(%x) {
            sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=3, j=4}, custom>
        } : (tensor<3x4xf64>) -> tensor<3x4xf64>
        return %r : tensor<3x4xf64> }"""
    )
    main = mlir.main_function(code)
    sharding_rules.populate(code)
    (returned,) = mlir.operands(mlir.return_operation(mlir.body(main)))
    known = find_owners(main, {1: 0}, 3, []).of(returned)
    assert isinstance(known, Mixed)
    assert known.unknown


def test_a_false_claim_is_seen():
    probed = Probed(next(iter(PER_EXAMPLE.values())))
    probed.classes[-1] = Owned(labelled(np.full(elements(probed.classes[-1].labels).shape, 0)))
    with pytest.raises(AssertionError):
        assert_claims_hold(probed)
