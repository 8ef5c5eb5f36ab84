"""Probes: what owners say of each value, held against executing the function, examples changed.

Owned: changing example b moves elements of owner b only. Summed: the mixed second difference
vanishes for every pair of examples. The checker knows no op.
"""

import itertools
import re

import numpy as np

from hlo_surgery.module import Module
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.emit.main_signature import set_results
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.classes import Owned, Summed
from tests.owners.labelling.test_labels import elements
from tests.raising.single_ops import random_array

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


class Probed:
    """A row's classes, value by value, and its function with every value returned."""

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
        set_results(main, values, [])
        self.row, self.module = row, Module(code)

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


def vanishes(neither, first, second, both):
    """Whether the mixed second difference is rounding."""
    scale = max(np.max(np.abs(y), initial=0) for y in (neither, first, second, both))
    assert np.isfinite(scale), "numbers of both signs give NaN or infinity: guard what takes them"
    return bool(np.all(np.abs(neither - first - second + both) <= ROUNDING * (1 + scale)))


def reaches(probed):
    rng = np.random.default_rng(0)
    arrays, others = probed.draw(rng), probed.draw(rng)
    moved = probed.run(exchanged(probed.row, arrays, others, range(probed.size)))[-1]
    return not np.array_equal(probed.run(arrays)[-1], moved)


def mixes(probed, seed):
    """Whether the last value is no sum of the examples: some second difference does not vanish."""
    rng = np.random.default_rng(seed)
    arrays, others = probed.draw(rng), probed.draw(rng)
    others[0] = arrays[0]

    def last(*examples):
        return probed.run(exchanged(probed.row, arrays, others, examples))[-1].astype(np.complex128)

    pairs = itertools.combinations(range(probed.size), 2)
    return not all(vanishes(last(), last(a), last(b), last(a, b)) for a, b in pairs)
