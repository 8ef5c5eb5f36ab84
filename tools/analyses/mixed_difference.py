"""The mixed second difference: what settles whether a gradient is r + sum of c_b.

    y(x) - y(x, a changed) - y(x, b changed) + y(x, both changed) = 0 for all a != b

It is sampled: what is not zero mixes, what is zero has not been seen to.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from hlo_surgery.module import Module
from tests.single_ops import random_array
from tools.analyses.cases import Case, flat

PAIRS = 12


def mixed_difference(case: Case, seed: int = 0) -> float:
    """The largest mixed second difference of the gradients, relative to their largest entry."""
    module, rng = Module(flat(case)), np.random.default_rng(seed)
    arrays = case.arrays or [random_array(a.shape, a.dtype, rng) for a in module.arguments]
    others = {i: _others(arrays[i], axis, rng) for i, axis in case.batch.items()}

    def outputs(examples: Sequence[int]) -> list[np.ndarray]:
        changed = [_changed(case, i, a, others.get(i), examples) for i, a in enumerate(arrays)]
        found = module.call(*changed)
        return [np.asarray(found[number]).astype(np.complex128) for number in case.outputs]

    plain, worst = outputs([]), 0.0
    scale = max((float(np.abs(y).max(initial=0)) for y in plain), default=0.0) + 1e-30
    pairs = list(itertools.combinations(range(case.size), 2))
    for a, b in pairs[:: max(1, len(pairs) // PAIRS)]:
        corners = zip(plain, outputs([a]), outputs([b]), outputs([a, b]), strict=True)
        for neither, first, second, both in corners:
            difference = np.abs(neither - first - second + both)
            worst = max(worst, float(difference.max(initial=0)) / scale)
    return worst


def _others(array: np.ndarray, axis: int, rng: np.random.Generator) -> np.ndarray:
    """Other examples of the same kind: each example's entries in another order, or scaled."""
    if array.dtype.kind in "iub":
        return np.flip(np.roll(array, 1, axis), axis)
    return (array * rng.uniform(0.5, 1.5, array.shape) + 0.1).astype(array.dtype)


def _changed(
    case: Case, number: int, array: np.ndarray, other: np.ndarray | None, examples: Sequence[int]
) -> np.ndarray:
    if other is None:
        return array
    result, axis = np.array(array), case.batch[number]
    for b in examples:
        np.moveaxis(result, axis, 0)[b] = np.moveaxis(other, axis, 0)[b]
    return result
