"""Probes: what the analysis says of the values of main, held against running it, examples changed.

Rows: changing example b moves elements of example b only. Sums: the mixed second difference
vanishes for every pair of examples. The checker knows no op.
"""

import itertools
import re

import jax
import numpy as np

from hlo_surgery.module import Module
from hlo_surgery.passes.axes.classify import find_axes
from hlo_surgery.passes.axes.state import Shared, is_rows, is_sum
from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.emit.splice import set_results
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of
from hlo_surgery.passes.ir.modules import inline_calls
from hlo_surgery.passes.structure.digits import leaves
from tests.raising.single_ops import random_array

ROUNDING = 1e-9  # every float in the rows has 64 bits
ELEMENTS = {"f64": float, "i1": bool, "i32": np.int32, "ui32": np.uint32, "ui64": np.uint64}


def module_of(row):
    """The row as a module. A parameter scales its floating-point examples: none is mere data."""
    code = mlir.parse(source(row) if isinstance(row.made, str) else lowered(row))
    inline_calls(code)
    return code


def lowered(row):
    """As JAX lowers for TPU, where every function of linear algebra is an op of its own."""

    def scaled(w, *arrays):
        owned = [x * w if is_scaled(row, i) else x for i, x in enumerate(arrays)]
        return row.made(*owned)

    with jax.enable_x64(True):
        structs = [struct(kind) for kind in ("f64", *row.types)]
        traced = jax.jit(scaled, keep_unused=True).trace(*structs)
        return traced.lower(lowering_platforms=("tpu",)).as_text()


def is_scaled(row, i):
    return i in row.axes and row.types[i].endswith("f64")


def struct(kind):
    """Of a type such as 3x4xf64."""
    *sizes, element = kind.split("x")
    return jax.ShapeDtypeStruct([int(size) for size in sizes], ELEMENTS[element])


def source(row):
    arguments = ", ".join(f"%in{i}: tensor<{kind}>" for i, kind in enumerate(row.types))
    body = [_scaled(i, kind) for i, kind in enumerate(row.types) if is_scaled(row, i)]
    text = row.made
    for i in range(len(row.types)):
        if not is_scaled(row, i):
            text = re.sub(rf"%{i}\b", f"%in{i}", text)
    lines = [f"func.func @main(%w: tensor<f64>, {arguments}) {{", *body, text, "return }"]
    return "\n".join(lines)


def _scaled(i, kind):
    weights = f"%w{i} = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f64>) -> tensor<{kind}>"
    return f"{weights}\n%{i} = stablehlo.multiply %in{i}, %w{i} : tensor<{kind}>"


class Probed:
    """A module's classes, value by value of main, and its function with every value returned."""

    def __init__(self, code, axes):
        main = mlir.main_function(code)
        block = mlir.body(main)
        first, axis = next(iter(axes.items()))
        self.axes, self.size = axes, mlir.shape(block.arguments[first])[axis]
        kernels.populate(code)
        self.state = find_axes(main, axes, self.size, [])
        kernels.strip(code)
        self.values = [r for op in mlir.operations(block)[:-1] for r in op.results]
        self.classes = [self.state.of(v) for v in self.values]
        self.owners = [
            owners(self.state, v) if is_rows(self.state.of(v)) else None for v in self.values
        ]
        self.outputs = [self.state.of(v) for v in mlir.operands(mlir.return_operation(block))]
        set_results(main, self.values, [])
        self.module = Module(code)

    @classmethod
    def of_row(cls, row):
        return cls(module_of(row), {i + 1: axis for i, axis in row.axes.items()})

    def draw(self, rng):
        arguments = mlir.body(mlir.main_function(self.module.code)).arguments
        return [random_array(mlir.shape(a), dtype_of(a), rng) for a in arguments]

    def run(self, arrays):
        return [np.asarray(y) for y in self.module.call(*arrays)]

    def exchanged(self, arrays, others, examples):
        """`arrays` with some examples taken from `others`."""
        result = [array.copy() for array in arrays]
        for i, axis in self.axes.items():
            for b in examples:
                np.moveaxis(result[i], axis, 0)[b] = np.moveaxis(others[i], axis, 0)[b]
        return result


def owners(state, value):
    """[*shape]: whose each element of rows is, by the digits of its dimensions and places."""
    numbers = np.zeros(mlir.shape(value), int)
    strides = dict(zip(state.batch, _strides([d.size for d in state.batch]), strict=True))
    for dim, digits in enumerate(state.structure.of(value)):
        own = leaves(digits)
        along = np.unravel_index(np.arange(mlir.shape(value)[dim]), [d.size for d in own] or [1])
        for digit, index in zip(own, along, strict=False):
            if digit in state.offsets:
                whole, first = state.offsets[digit]
                added = (index + first) * strides[whole]
                numbers += added.reshape([-1 if d == dim else 1 for d in range(numbers.ndim)])
    return numbers + sum(place * strides[d] for d, place in state.of(value).at.items())


def _strides(sizes):
    return [int(np.prod(sizes[k + 1 :])) for k in range(len(sizes))]


def assert_claims_hold(probed):
    """Every claim of rows and sums; what holds mixed data is constant by definition: not asked."""
    rng = np.random.default_rng(0)
    arrays, others = probed.draw(rng), probed.draw(rng)
    others = [
        o if i in probed.axes else a for i, (a, o) in enumerate(zip(arrays, others, strict=True))
    ]
    plain = probed.run(arrays)
    examples = range(probed.size)
    changed = [probed.run(probed.exchanged(arrays, others, [b])) for b in examples]
    count = 0
    for b, moved in enumerate(changed):
        for own, known, before, after in zip(
            probed.owners, probed.classes, plain, moved, strict=True
        ):
            if isinstance(known, Shared):
                np.testing.assert_array_equal(before, after)
            if own is not None:
                count += 1
                np.testing.assert_array_equal(before[own != b], after[own != b])
    for a, b in itertools.islice(itertools.combinations(examples, 2), 12):
        both = probed.run(probed.exchanged(arrays, others, [a, b]))
        quads = zip(probed.classes, plain, changed[a], changed[b], both, strict=True)
        for known, *corners in quads:
            if is_sum(known):
                count += 1
                assert vanishes(*corners)
    return count


def vanishes(neither, first, second, both):
    """Whether the mixed second difference is rounding."""
    scale = max(np.max(np.abs(y), initial=0) for y in (neither, first, second, both))
    assert np.isfinite(scale), "numbers of both signs give NaN or infinity: guard what takes them"
    return bool(np.all(np.abs(neither - first - second + both) <= ROUNDING * (1 + scale)))


def reaches(probed):
    """Whether examples move the last value at all."""
    rng = np.random.default_rng(0)
    arrays, others = probed.draw(rng), probed.draw(rng)
    moved = probed.run(probed.exchanged(arrays, others, range(probed.size)))[-1]
    return not np.array_equal(probed.run(arrays)[-1], moved)


def mixes(probed, seed):
    """Whether the last value is no sum of the examples: some second difference does not vanish."""
    rng = np.random.default_rng(seed)
    arrays, others = probed.draw(rng), probed.draw(rng)
    others[0] = arrays[0]

    def last(*examples):
        changed = probed.exchanged(arrays, others, examples)
        return probed.run(changed)[-1].astype(np.complex128)

    pairs = itertools.combinations(range(probed.size), 2)
    return not all(vanishes(last(), last(a), last(b), last(a, b)) for a, b in pairs)
