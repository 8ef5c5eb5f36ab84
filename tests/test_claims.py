"""Claims by probe: the analysis held against executing the function with examples changed.

PerExample: changing example b moves slice b only. Summed: the mixed second difference vanishes for
every pair of examples. Shared: no example moves it. The rows are data, in `claim_rows.py`; the
checker knows no op.
"""

import itertools
import re

import numpy as np
import pytest

from hlo_surgery.module import Module
from hlo_surgery.passes.example_axes import sharding_rules
from hlo_surgery.passes.example_axes.example_axes import find_example_axes
from hlo_surgery.passes.example_axes.lattice import Mixed, PerExample, Shared, Summed
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of

from .claim_rows import PER_EXAMPLE, SHARED, SUMMED, TRAPS, UNTOLD
from .single_ops import random_array

ROUNDING = 1e-9  # every float in the rows has 64 bits


def source(row):
    """The row as a module. Its floating-point examples are scaled by a parameter, so that none is
    mere data.
    """
    arguments = ", ".join(f"%in{i}: tensor<{kind}>" for i, kind in enumerate(row.types))
    body = [
        _scaled(i, kind)
        for i, kind in enumerate(row.types)
        if i in row.axes and kind.endswith("f64")
    ]
    text = row.text
    for i, kind in enumerate(row.types):
        if not (i in row.axes and kind.endswith("f64")):
            text = re.sub(rf"%{i}\b", f"%in{i}", text)
    return f"func.func @main(%w: tensor<f64>, {arguments}) {{\n" + "\n".join(
        [*body, text, "return }"]
    )


def _scaled(i, kind):
    weights = f"%w{i} = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f64>) -> tensor<{kind}>"
    return f"{weights}\n%{i} = stablehlo.multiply %in{i}, %w{i} : tensor<{kind}>"


class Analysed:
    """A row's classes, value by value, and its function with every value returned."""

    def __init__(self, row):
        code = mlir.parse(source(row))
        main = mlir.main_function(code)
        size = next(
            mlir.shape(mlir.body(main).arguments[i + 1])[axis] for i, axis in row.axes.items()
        )
        sharding_rules.populate(code)
        self.axes = find_example_axes(main, {i + 1: axis for i, axis in row.axes.items()}, size, ())
        sharding_rules.strip(code)
        self.values = [r for op in mlir.operations(mlir.body(main))[:-1] for r in op.results]
        mlir.set_results(main, self.values, [])
        self.row, self.size, self.module = row, size, Module(code)
        self.classes = [self.axes.of(v) for v in self.values]

    def draw(self, rng):
        arguments = mlir.body(mlir.main_function(self.module.code)).arguments
        return [random_array(mlir.shape(a), dtype_of(a), rng) for a in arguments]

    def run(self, arrays):
        return [np.asarray(y) for y in self.module.call(*arrays)]


def exchanged(row, arrays, others, examples):
    """`arrays` with some examples taken from `others`."""
    result = [array.copy() for array in arrays]
    for i, axis in row.axes.items():
        for b in examples:
            np.moveaxis(result[i + 1], axis, 0)[b] = np.moveaxis(others[i + 1], axis, 0)[b]
    return result


def assert_claims_hold(analysed, seed=0):
    """Every claim about every value, for every example and every pair of examples."""
    assert not analysed.axes.data, "mixed data is constant by definition: no probe can tell"
    rng = np.random.default_rng(seed)
    arrays, others = analysed.draw(rng), analysed.draw(rng)
    others[0] = arrays[0]
    plain = analysed.run(arrays)
    changed = [
        analysed.run(exchanged(analysed.row, arrays, others, [b])) for b in range(analysed.size)
    ]
    for b, moved in enumerate(changed):
        for known, before, after in zip(analysed.classes, plain, moved, strict=True):
            assert_only_own_slice_moved(known, before, after, b, analysed.size)
    for a, b in itertools.combinations(range(analysed.size), 2):
        both = analysed.run(exchanged(analysed.row, arrays, others, [a, b]))
        for known, *corners in zip(
            analysed.classes, plain, changed[a], changed[b], both, strict=True
        ):
            assert not isinstance(known, Summed) or vanishes(*corners), (
                f"the pair {a}, {b} is not summed"
            )


def assert_only_own_slice_moved(known, before, after, b, size):
    if isinstance(known, Shared):
        np.testing.assert_array_equal(before, after)
    if isinstance(known, PerExample):
        others = [e for e in range(size) if e != b]
        np.testing.assert_array_equal(
            *(by_example(known, y, size).take(others, 0) for y in (before, after))
        )


def by_example(known, array, size):
    """[B, ...]: the slice of each example."""
    head, tail = array.shape[: known.dim], array.shape[known.dim + 1 :]
    assert array.shape[known.dim] == known.before * size * known.after
    return np.moveaxis(
        array.reshape(*head, known.before, size, known.after, *tail), known.dim + 1, 0
    )


def vanishes(neither, first, second, both):
    """Whether the mixed second difference is rounding."""
    scale = max(np.max(np.abs(y), initial=0) for y in (neither, first, second, both))
    return bool(np.all(np.abs(neither - first - second + both) <= ROUNDING * (1 + scale)))


def named(rows):
    return pytest.mark.parametrize("row", rows.values(), ids=rows.keys())


@named(PER_EXAMPLE)
def test_examples_in_slices_of_their_own(row):
    analysed = Analysed(row)
    assert analysed.classes[-1] == row.axis
    assert_claims_hold(analysed)


@named(SUMMED)
def test_sums_over_examples(row):
    analysed = Analysed(row)
    assert isinstance(analysed.classes[-1], Summed), analysed.classes[-1]
    assert_claims_hold(analysed)
    assert reaches(analysed), "a sum that no example moves tests nothing"


@named(SHARED)
def test_values_without_examples(row):
    analysed = Analysed(row)
    assert analysed.classes[-1] == Shared()
    assert_claims_hold(analysed)


@named(TRAPS)
def test_what_only_looks_separable(row):
    """SOUNDNESS: accepted wrongly by others. Refused here, and rightly so: the probe sees the
    examples meet.
    """
    analysed = Analysed(row)
    assert isinstance(analysed.classes[-1], Mixed), analysed.classes[-1]
    assert any(mixes(analysed, seed) for seed in range(32))


@named(UNTOLD)
def test_what_no_probe_tells_apart(row):
    assert isinstance(Analysed(row).classes[-1], Mixed)


def test_a_sharding_rule_of_its_author_says_nothing_of_independence():
    """SOUNDNESS, trap 7: such rules describe placement."""
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
    known = find_example_axes(main, {1: 0}, 3, ()).of(returned)
    assert isinstance(known, Mixed)
    assert known.unknown


def reaches(analysed):
    rng = np.random.default_rng(0)
    arrays, others = analysed.draw(rng), analysed.draw(rng)
    moved = analysed.run(exchanged(analysed.row, arrays, others, range(analysed.size)))[-1]
    return not np.array_equal(analysed.run(arrays)[-1], moved)


def mixes(analysed, seed):
    """Whether the last value is no sum of the examples: some second difference does not vanish."""
    rng = np.random.default_rng(seed)
    arrays, others = analysed.draw(rng), analysed.draw(rng)
    others[0] = arrays[0]

    def last(*examples):
        return analysed.run(exchanged(analysed.row, arrays, others, examples))[-1].astype(
            np.complex128
        )

    pairs = itertools.combinations(range(analysed.size), 2)
    return not all(vanishes(last(), last(a), last(b), last(a, b)) for a, b in pairs)
