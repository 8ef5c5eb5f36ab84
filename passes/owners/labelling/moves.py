"""Moves: ops that put elements elsewhere, done to the labels as they are done to the elements.

Sound, since each element of the result is one element of an operand, and so has its owner; what is
filled in by a constant has none.
"""

from collections.abc import Callable, Sequence

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.labelling.digits import compact, regrouped, whole
from hlo_surgery.passes.owners.labelling.frames import joined, same
from hlo_surgery.passes.owners.labelling.labels import (
    NONE,
    Labels,
    Numbers,
    Places,
    check_count,
    everywhere,
    undivided,
)

BOUNDS = ("start_indices", "limit_indices", "strides")
PADDINGS = ("edge_padding_low", "edge_padding_high", "interior_padding")
Move = Callable[[Operation, Sequence[Labels], int], Labels]
"""Of an op on labels of so many examples."""


def taken(labels: Labels, dim: int, places: Places) -> Labels:
    """The elements at these places along a dimension, [n] or [*steps, n]; -1 is a hole."""
    if not labels.varies_along(dim):
        resized = _resized(labels, dim, places.shape[-1])
        holes = bool((places < 0).any()) and bool(resized.digits[dim])
        return _with_holes(resized, dim, places) if holes else resized
    labels = whole(labels, [dim])
    (axis,) = labels.axes(dim)
    owners = _taken_along(labels.owners, axis, places)
    digits = (*labels.digits[:dim], (places.shape[-1],), *labels.digits[dim + 1 :])
    return compact(Labels(digits, owners))


def _with_holes(labels: Labels, dim: int, places: Places) -> Labels:
    """Labels that are the same all along a dimension, but for places that are holes, [.., n]."""
    (axis,) = labels.axes(dim)
    sizes = [1] * labels.owners.ndim
    sizes[axis] = places.shape[-1]
    holes = (places < 0).reshape((-1, places.shape[-1])).all(0).reshape(sizes)
    owners = np.where(holes, np.int32(NONE), labels.owners).astype(np.int32)
    return compact(Labels(labels.digits, owners))


def _taken_along(owners: Numbers, axis: int, places: Places) -> Numbers:
    """`places`: [n], or [*steps, n] with the step axes of `owners`."""
    sizes = [1] * owners.ndim
    sizes[: places.ndim - 1] = places.shape[:-1]
    sizes[axis] = places.shape[-1]
    index = places.reshape(sizes)
    others = [1 if a == axis else size for a, size in enumerate(owners.shape)]
    check_count(*np.broadcast_shapes(others, sizes))
    found = np.take_along_axis(owners, np.maximum(index, 0), axis)
    return np.where(index < 0, np.int32(NONE), found).astype(np.int32)


def _resized(labels: Labels, dim: int, size: int) -> Labels:
    """With another size of a dimension along which no owner varies."""
    axes, (group,) = labels.axes(dim), undivided([size])
    old = labels.owners.shape
    sizes = (*old[: axes.start], *[1] * len(group), *old[axes.stop :])
    digits = (*labels.digits[:dim], group, *labels.digits[dim + 1 :])
    return Labels(digits, labels.owners.reshape(sizes))


def spread(labels: Labels, shape: Sequence[int]) -> Labels:
    """A scalar's labels for every element of a shape."""
    return everywhere(labels.owners, shape)


def _reshape(op: Operation, operands: Sequence[Labels], size: int) -> Labels:
    return regrouped(operands[0], mlir.shape(op.results[0]))


def _slice(op: Operation, operands: Sequence[Labels], size: int) -> Labels:
    labels = operands[0]
    bounds = zip(*(integers(op, name) for name in BOUNDS), strict=True)
    for dim, bound in enumerate(bounds):
        if bound != (0, labels.shape[dim], 1):
            labels = taken(labels, dim, np.arange(*bound))
    return labels


def _reverse(op: Operation, operands: Sequence[Labels], size: int) -> Labels:
    labels = operands[0]
    for dim in integers(op, "dimensions"):
        labels = taken(labels, dim, np.arange(labels.shape[dim])[::-1])
    return labels


def _pad(op: Operation, operands: Sequence[Labels], size: int) -> Labels:
    labels, shape = operands[0], mlir.shape(op.results[0])
    amounts = zip(*(integers(op, name) for name in PADDINGS), strict=True)
    for dim, (low, high, between) in enumerate(amounts):
        if (low, high, between) != (0, 0, 0):
            places = _padded_places(labels.shape[dim], shape[dim], low, between)
            labels = taken(labels, dim, places)
    filling = operands[1]
    return labels if filling.is_nobodys else joined([labels, spread(filling, shape)])


def _padded_places(size: int, padded: int, low: int, between: int) -> Places:
    """For each place behind a pad the one that it had before; -1 for what is filled in."""
    behind = np.arange(padded) - low
    before, rest = np.divmod(behind, between + 1)
    inside = (before >= 0) & (before < size) & (rest == 0)
    return np.where(inside, before, -1)


def _concatenate(op: Operation, operands: Sequence[Labels], size: int) -> Labels:
    dim, total = integer(op, "dimension"), mlir.shape(op.results[0])[integer(op, "dimension")]
    pairs = zip(operands, op.operands, strict=True)
    pieces = [(labels, mlir.shape(v)[dim]) for labels, v in pairs if mlir.shape(v)[dim]]
    if not pieces:
        return _resized(operands[0], dim, total)
    rows = _rows_of_all([labels for labels, _ in pieces], dim)
    if rows is not None:
        return _resized(rows, dim, total)
    starts = np.cumsum([0, *(length for _, length in pieces)])
    placed = [
        _laid_out(labels, dim, int(start), total)
        for (labels, _), start in zip(pieces, starts[:-1], strict=True)
    ]
    return joined(placed)


def _rows_of_all(pieces: Sequence[Labels], dim: int) -> Labels | None:
    """The labels of all pieces together, if these have the same owners, all along the dimension."""
    if any(labels.varies_along(dim) for labels in pieces):
        return None
    first, *others = (_resized(labels, dim, 1) for labels in pieces)
    return first if all(same(own, first) for own in others) else None


def _laid_out(labels: Labels, dim: int, start: int, total: int) -> Labels:
    """A piece at its places along a longer dimension, all else being nobody's."""
    size, full = labels.shape[dim], whole(labels, [dim])
    (axis,) = full.axes(dim)
    sizes = list(full.owners.shape)
    sizes[axis] = total
    check_count(*sizes)
    owners = np.full(sizes, NONE, np.int32)
    spots = [slice(None)] * len(sizes)
    spots[axis] = slice(start, start + size)
    owners[tuple(spots)] = full.owners
    return Labels((*full.digits[:dim], (total,), *full.digits[dim + 1 :]), owners)


LABEL_MOVES: dict[str, Move] = {
    "stablehlo.reshape": _reshape,
    "stablehlo.slice": _slice,
    "stablehlo.reverse": _reverse,
    "stablehlo.pad": _pad,
    "stablehlo.concatenate": _concatenate,
}
