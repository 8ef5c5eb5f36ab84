"""Claims by probe, op by op. The rows are data, in `claim_rows.py`.

This folder alone tests the analysis: classes of single ops, where examples lie in a dump, traps.
"""

import numpy as np
import pytest

from hlo_surgery.passes.axes.classify import find_axes
from hlo_surgery.passes.axes.state import Mixed, Shared, is_rows, is_sum
from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.dataflow.kernels import call_names
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from tests.axes.claim_rows import PER_EXAMPLE, SHARED, SUMMED, TRAPS, UNTOLD
from tests.axes.probes import Probed, assert_claims_hold, mixes, module_of, reaches


def named(rows):
    return pytest.mark.parametrize("row", rows.values(), ids=rows.keys())


def rows_along(axis, shape, size):
    """The owner of each element of a shape where the examples lie along an axis."""
    numbers = np.arange(shape[axis.dim]) // axis.after % size
    return np.broadcast_to(np.expand_dims(numbers, [*range(1, len(shape) - axis.dim)]), shape)


@pytest.mark.first(7)
@named(PER_EXAMPLE)
def test_rows_of_examples_are_found(row):
    probed = Probed.of_row(row)
    assert is_rows(probed.classes[-1])
    own = probed.owners[-1]
    np.testing.assert_array_equal(own, rows_along(row.axis, own.shape, probed.size))
    assert assert_claims_hold(probed)


@pytest.mark.first(4)
@named(SUMMED)
def test_sums_are_summed(row):
    probed = Probed.of_row(row)
    assert is_sum(probed.classes[-1]), probed.classes[-1]
    assert assert_claims_hold(probed)
    assert reaches(probed), "a sum that no example moves tests nothing"


@named(SHARED)
def test_what_no_example_reaches_is_shared(row):
    probed = Probed.of_row(row)
    last = probed.classes[-1]
    assert isinstance(last, Shared)
    assert last.data is None
    assert_claims_hold(probed)


@pytest.mark.first(6)
@named(TRAPS)
def test_what_only_looks_separable(row):
    """Refused, and rightly so: the probe sees the examples meet."""
    probed = Probed.of_row(row)
    assert isinstance(probed.classes[-1], Mixed), probed.classes[-1]
    assert any(mixes(probed, seed) for seed in range(32))


@named(UNTOLD)
def test_what_no_probe_tells_apart(row):
    assert isinstance(Probed.of_row(row).classes[-1], Mixed)


@pytest.mark.parametrize("name", [n for n in UNTOLD if "s an ex" in n or "call" in n])
def test_what_is_not_understood_is_no_constant_of_contributions(name):
    code = module_of(UNTOLD[name])
    main = mlir.main_function(code)
    kernels.populate(code)
    *_, last = mlir.operations(mlir.body(main))[:-1]
    known = find_axes(main, {1: 0}, 3, [], contribution=True).of(last.results[0])
    assert isinstance(known, Mixed)
    name, help = ("this op", "make every") if "body" in name else (call_names(last)[0], "if it")
    assert known.reason.why == f"nothing is known of how {name} treats the examples"
    assert known.reason.help.startswith(help)


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
    normalize(code)
    kernels.populate(code)
    main = mlir.main_function(code)
    (returned,) = mlir.operands(mlir.return_operation(mlir.body(main)))
    known = find_axes(main, {1: 0}, 3, []).of(returned)
    assert isinstance(known, Mixed)
    assert known.unknown
