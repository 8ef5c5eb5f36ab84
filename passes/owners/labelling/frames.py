"""Frames: labels of several values over common digits, so that numpy can compare them.

    %x : [B * L] by (B, L) ; %m : [B * L] by (2, B/2, L)  =>  both over (2, B/2, L)

The indices that dimensions count by are factors, as in Shardy's rules: two dimensions with the same
factor run together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.owners.labelling.digits import all_whole, regrouped
from hlo_surgery.passes.owners.labelling.labels import (
    NONE,
    Digits,
    Labels,
    Numbers,
    join,
)

# Labels with one factor for each dimension, and the numbers of these factors.
OnFactors = tuple[Labels, Sequence[int]]


@dataclass(frozen=True)
class Frame:
    """`owners` of each operand: [*steps, *digits of all factors]; `digits` and `axes` of each
    factor.
    """

    owners: list[Numbers]
    digits: dict[int, Digits]
    axes: dict[int, range]

    def result(self, owners: Numbers, dims: Sequence[Sequence[int] | int]) -> Labels:
        """Labels of a value of which each dimension counts by these factors, in order.

        A dimension given as its size has one digit, on which nothing depends. Along the axes of all
        other factors `owners` has size 1.
        """
        groups = [self._group(dim) for dim in dims]
        kept = [axis for dim in dims for axis in self._own_axes(dim)]
        steps = owners.ndim - sum(map(len, self.axes.values()))
        lost = [axis for axis in range(steps, owners.ndim) if axis not in kept]
        turned = owners.transpose([*range(steps), *kept, *lost])
        sizes = [n for dim in dims for n in self._axis_sizes(owners, dim)]
        return Labels(tuple(groups), turned.reshape((*owners.shape[:steps], *sizes)))

    def _group(self, dim: Sequence[int] | int) -> Digits:
        if isinstance(dim, int):
            return (dim,) if dim != 1 else ()
        return tuple(digit for factor in dim for digit in self.digits[factor])

    def _own_axes(self, dim: Sequence[int] | int) -> list[int]:
        return [] if isinstance(dim, int) else [a for f in dim for a in self.axes[f]]

    def _axis_sizes(self, owners: Numbers, dim: Sequence[int] | int) -> list[int]:
        if isinstance(dim, int):
            return [1] * len(self._group(dim))
        return [owners.shape[axis] for axis in self._own_axes(dim)]


def framed(operands: Sequence[OnFactors], sizes: Sequence[int], steps: int) -> Frame:
    """Operands over common digits of factors of these sizes, within `steps` loops."""
    digits = {f: _common_digits(operands, f, size) for f, size in enumerate(sizes)}
    axes, first = dict[int, range](), steps
    for factor, group in digits.items():
        axes[factor] = range(first, first + len(group))
        first += len(group)
    owners = [_placed(labels, f, digits, axes, (steps, first)) for labels, f in operands]
    return Frame(owners, digits, axes)


def _common_digits(operands: Sequence[OnFactors], factor: int, size: int) -> Digits:
    """The digits into which all digits that matter divide a factor; one where they do not divide
    each other.
    """
    if size == 1:
        return ()
    ends = {size}
    for labels, factors in operands:
        for dim, other in enumerate(factors):
            if other == factor and labels.varies_along(dim):
                group = labels.digits[dim]
                ends |= {math.prod(group[k:]) for k in range(len(group))}
    inner, found = 1, list[int]()
    for end in sorted(ends - {1}):
        if end % inner:
            return (size,)
        found.insert(0, end // inner)
        inner = end
    return tuple(found)


def _placed(
    labels: Labels,
    factors: Sequence[int],
    digits: Mapping[int, Digits],
    axes: Mapping[int, range],
    ends: tuple[int, int],
) -> Numbers:
    """Owners [*steps, *digits of all factors]; `ends`: the numbers of axes without and with
    digits.
    """
    steps, count = ends
    fine = [digit for f in factors for digit in digits[f]]
    owners = all_whole(regrouped(labels.inside(steps), fine)).owners
    targets = [axis for f in factors for axis in axes[f]]
    order = [steps + int(k) for k in np.argsort(targets)]
    sizes = [*owners.shape[:steps], *[1] * (count - steps)]
    for axis, size in zip(targets, owners.shape[steps:], strict=True):
        sizes[axis] = size
    return owners.transpose([*range(steps), *order]).reshape(sizes)


def joined(several: Sequence[Labels]) -> Labels:
    """The owners of what is made element by element of values of one shape."""
    first = several[0]
    if all(labels is first for labels in several):
        return first
    frame = _side_by_side(several)
    dims = [(dim,) for dim in range(len(first.shape))]
    return frame.result(reduce(join, frame.owners), dims)


def without(labels: Labels, others: Labels) -> Labels:
    """Labels of what is nobody's wherever others are not."""
    frame = _side_by_side([labels, others])
    own, other = frame.owners
    dims = [(dim,) for dim in range(len(labels.shape))]
    return frame.result(np.where(other == NONE, own, np.int32(NONE)).astype(np.int32), dims)


def same(one: Labels, other: Labels) -> bool:
    """Whether two labellings of a value agree in every element."""
    if one is other:
        return True
    frame = _side_by_side([one, other])
    a, b = frame.owners
    return bool((a == b).all())


def gives_evenly(before: Labels, after: Labels) -> bool:
    """Whether each example that owns elements owns as many that were nobody's before, at each step
    of the loops around.
    """
    if before is after or not before.has_nobodys:
        return True
    frame = _side_by_side([before, after])
    old, new = frame.owners
    steps = max(before.steps, after.steps)
    # Counted first along what no owner depends on, as most elements lie along that.
    beside = tuple(axis for axis in range(steps, new.ndim) if new.shape[axis] == 1)
    given, owners = np.broadcast_arrays((old == NONE).sum(beside, keepdims=True), new)
    rows = (math.prod(given.shape[:steps]), math.prod(given.shape[steps:]))
    pairs = zip(given.reshape(rows), owners.reshape(rows), strict=True)
    return all(_gives_each_alike(counts, own) for counts, own in pairs)


def _gives_each_alike(counts: npt.NDArray[np.int_], owners: Numbers) -> bool:
    """The same of one step: how many elements were nobody's, at each place, and whose it is."""
    owned = owners >= 0
    totals = np.bincount(owners[owned], counts[owned])
    return len(set(totals[np.unique(owners[owned])].tolist())) <= 1


def _side_by_side(several: Sequence[Labels]) -> Frame:
    shape = several[0].shape
    steps = max(labels.steps for labels in several)
    return framed([(labels, range(len(shape))) for labels in several], shape, steps)
