"""Digits: labels over other digits of the same row-major index.

    regrouped   ((B, L),) as dimensions [k, B/k, L]  =>  ((k,), (B/k,), (L,))
    whole       ((B, L),)                            =>  ((B * L,),)
    canonical   ((2, B), (D,)), owners [2, B, D], all by B alone  =>  owners [1, B, 1]
    compact     the same, where NONE stays

Every element keeps its owner, but that `canonical` may put one where NONE was.
"""

import math
from collections.abc import Sequence

import numpy as np

from hlo_surgery.passes.owners.labelling.labels import (
    MANY,
    Digits,
    Labels,
    Numbers,
    check_count,
    over,
)


def regrouped(labels: Labels, shape: Sequence[int]) -> Labels:
    """The same elements in row-major order, as a value of another shape.

    A digit is split where it lies in two dimensions, and merged with the one before where it cannot
    be split.
    """
    left, owners = list(labels.sizes), labels.owners
    groups: list[Digits] = []
    for size in reversed(shape):
        group, owners = _taken(left, owners, labels.steps, size)
        groups.insert(0, group)
    first = labels.steps + len(left)  # what is left are digits of size 1
    owners = owners.reshape((*owners.shape[: labels.steps], *owners.shape[first:]))
    return Labels(tuple(groups), owners)


def _taken(left: list[int], owners: Numbers, steps: int, size: int) -> tuple[Digits, Numbers]:
    """The least significant digits of `left`, `size` numbers of them, which leave it."""
    group: list[int] = [left.pop()] if size == 0 else []
    while size > 1:
        axis, last = steps + len(left) - 1, left[-1]
        if size % last == 0:
            group.insert(0, left.pop())
            size //= last
        elif last % size == 0:
            left[-1:] = [last // size, size]
            owners = split_axis(owners, axis, last // size, size)
        else:
            owners = merge_axes(owners, axis - 1, left[-2], last)
            left[-2:] = [left[-2] * last]
    return tuple(group), owners


def split_axis(owners: Numbers, axis: int, outer: int, inner: int) -> Numbers:
    """An axis of size outer * inner (or 1) as two."""
    sizes = (1, 1) if owners.shape[axis] == 1 else (outer, inner)
    return owners.reshape((*owners.shape[:axis], *sizes, *owners.shape[axis + 1 :]))


def merge_axes(owners: Numbers, axis: int, outer: int, inner: int) -> Numbers:
    """Two neighbouring axes, each of its full size or 1, as one."""
    before, behind = owners.shape[:axis], owners.shape[axis + 2 :]
    if owners.shape[axis : axis + 2] == (1, 1):
        return owners.reshape((*before, 1, *behind))
    check_count(*before, outer, inner, *behind)
    full = np.broadcast_to(owners, (*before, outer, inner, *behind))
    return full.reshape((*before, outer * inner, *behind))


def whole(labels: Labels, dims: Sequence[int]) -> Labels:
    """One digit for each of these dimensions, also where its size is 1."""
    for dim in dims:
        labels = _with_one_digit(labels, dim)
    return labels


def _with_one_digit(labels: Labels, dim: int) -> Labels:
    group, owners = list(labels.digits[dim]), labels.owners
    first = labels.axes(dim).start
    if not group:
        group, owners = [1], np.expand_dims(owners, first)
    while len(group) > 1:
        owners = merge_axes(owners, first, group[0], group[1])
        group[:2] = [group[0] * group[1]]
    return Labels((*labels.digits[:dim], tuple(group), *labels.digits[dim + 1 :]), owners)


def all_whole(labels: Labels) -> Labels:
    """One digit for each dimension: owners [*steps, *shape], of size 1 where nothing varies."""
    return whole(labels, range(len(labels.digits)))


def canonical(labels: Labels, size: int) -> Labels:
    """The same with few digits: an axis is kept only where one owner for all along it would not do.

    Sound, since an owner may stand for NONE where each of the examples, `size` many, then has as
    many elements. What repeats along a dimension, or comes in equal runs, has digits of its own for
    that.
    """
    few = Labels(labels.digits, _without_idle_axes(labels.owners))
    return compact(few if few.covers(size) else labels)


def compact(labels: Labels) -> Labels:
    """The same with few digits: an axis is kept only where owners differ along it."""
    needed = _merged(Labels(labels.digits, _without_equal_axes(labels.owners)))
    return _outside(_merged(_with_own_digits(needed)))


def _outside(labels: Labels) -> Labels:
    """Without the axes of the innermost loops whose steps do not matter, as if made outside."""
    steps, sizes = labels.steps, labels.owners.shape
    while steps and sizes[steps - 1] == 1:
        steps -= 1
    if steps == labels.steps:
        return labels
    return Labels(labels.digits, labels.owners.reshape((*sizes[:steps], *sizes[labels.steps :])))


def _without_idle_axes(owners: Numbers) -> Numbers:
    """NONE gets the owner of what is beside it, along axes along which that is one."""
    for axis in reversed(range(owners.ndim)):
        if owners.shape[axis] > 1:
            one = over(owners, [axis])
            owners = owners if (one == MANY).any() else one
    return owners


def _without_equal_axes(owners: Numbers) -> Numbers:
    for axis in reversed(range(owners.ndim)):
        first = owners.take([0], axis) if owners.shape[axis] > 1 else owners
        owners = first if (owners == first).all() else owners
    return owners


def _with_own_digits(labels: Labels) -> Labels:
    """Digits along which owners repeat, or neighbours come in equal runs, are split there."""
    owners, axis = labels.owners, labels.owners.ndim
    groups: list[Digits] = []
    for group in reversed(labels.digits):
        sizes: list[int] = []
        for size in reversed(group):
            axis -= 1
            own = [size]
            if owners.shape[axis] > 1:
                period = _period(owners, axis)
                owners = np.expand_dims(owners.take(range(period), axis), axis)
                run = _run_length(owners, axis + 1)
                owners = np.expand_dims(owners.take(range(0, period, run), axis + 1), axis + 2)
                own = [size // period, period // run, run]
            sizes[:0] = own
        groups.insert(0, tuple(sizes))
    return Labels(tuple(groups), owners)


def repeated(labels: Labels, dim: int, size: int) -> Labels:
    """Labels in which NONE has the owner that the same place has in other repetitions along a
    dimension, where all of the examples repeat but for those. `size`: B.
    """
    labels = whole(labels, [dim])
    (axis,), (length,) = labels.axes(dim), labels.digits[dim]
    for period in range(size, length // 2 + 1, size):
        if labels.owners.shape[axis] == 1 or length % period:
            continue
        parted = split_axis(labels.owners, axis, length // period, period)
        one = over(parted, [axis])
        if np.unique(one).tolist() == list(range(size)):
            full = np.broadcast_to(one, parted.shape).reshape(labels.owners.shape)
            return Labels(labels.digits, full)
    return labels


def _period(owners: Numbers, axis: int) -> int:
    """After how many places along an axis all owners repeat."""
    size = owners.shape[axis]
    turned = np.moveaxis(owners, axis, 0)
    for period in range(1, size // 2 + 1):
        if size % period == 0 and (turned[period] == turned[0]).all():
            rows = turned.reshape((size // period, period, *turned.shape[1:]))
            if (rows == rows[:1]).all():
                return period
    return size


def _run_length(owners: Numbers, axis: int) -> int:
    """How many neighbours along an axis always have the same owner."""
    size = owners.shape[axis]
    if size == 1:
        return 1
    others = tuple(a for a in range(owners.ndim) if a != axis)
    changes = (np.diff(owners, axis=axis) != 0).any(others)
    ends = np.flatnonzero(changes) + 1
    return math.gcd(size, int(np.gcd.reduce(ends)) if ends.size else 0)


def _merged(labels: Labels) -> Labels:
    """No digits of size 1, and neighbours of a dimension as one if both or neither matter."""
    kept = list(labels.owners.shape[: labels.steps])
    groups: list[Digits] = []
    for dim, group in enumerate(labels.digits):
        new: list[int] = []
        matters_before: bool | None = None
        for size, axis in zip(group, labels.axes(dim), strict=True):
            matters = labels.owners.shape[axis] > 1
            if size == 1:
                continue
            if matters == matters_before:
                new[-1] *= size
                kept[-1] *= labels.owners.shape[axis]
                continue
            new.append(size)
            kept.append(labels.owners.shape[axis])
            matters_before = matters
        groups.append(tuple(new))
    return Labels(tuple(groups), labels.owners.reshape(kept))
