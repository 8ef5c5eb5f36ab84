"""Indexed moves: slices, updates, gathers and scatters, whose places are known at every step or
not.

    gather    an element at a known place has that element's owner; where the place is not known,
              it has the owner of all that may be meant, between the bounds of the index: sound,
              since it is one of them
    update    an element is one of those that may land on it, or what was there before: their
              joint owner is the owner of either

An index that an example owns owns what is found or put there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import is_shared
from hlo_surgery.passes.owners.labelling.bounds import Bounds
from hlo_surgery.passes.owners.labelling.digits import all_whole
from hlo_surgery.passes.owners.labelling.frames import joined
from hlo_surgery.passes.owners.labelling.indices import bounds_of, column
from hlo_surgery.passes.owners.labelling.labels import (
    Labels,
    Numbers,
    Places,
    check_count,
    over,
)
from hlo_surgery.passes.owners.labelling.landing import (
    Spot,
    cleared,
    first_open,
    known_spot,
    landed,
)
from hlo_surgery.passes.owners.labelling.moves import spread, taken
from hlo_surgery.passes.owners.labelling.spots import (
    Windows,
    along,
    in_batch,
    range_of,
    ranges_of,
    start_of,
    windows_of,
)
from hlo_surgery.passes.owners.owners import Choice, Owners

SELECT = "stablehlo.select"


def dynamic_slice(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels:
    """Labels of a slice that starts at given indices."""
    whole, sizes = operands[0], mlir.shape(op.results[0])
    cut = [dim for dim, size in enumerate(sizes) if size != whole.shape[dim]]
    starts = {dim: _start(owners, op.operands[1 + dim], whole, dim) for dim in cut}
    spots = tuple((dim, _key_of(start)) for dim, start in starts.items())
    key = (op.name, whole, sizes, spots, owners.steps)
    labels = owners.remembered(key, lambda: _cut(whole.inside(owners.steps), starts, sizes))
    return joined([labels, *(spread(x, sizes) for x in operands[1:] if not x.is_nobodys)])


def _start(owners: Owners, index: Value, labels: Labels, dim: int) -> Bounds | None:
    return start_of(owners, index) if labels.varies_along(dim) else None


def _key_of(spot: Spot | Bounds) -> object:
    """What tells places from others."""
    if isinstance(spot, Bounds):
        return (_key_of(spot.low), _key_of(spot.high))
    return (spot.shape, spot.tobytes()) if isinstance(spot, np.ndarray) else spot


def _cut(labels: Labels, starts: dict[int, Bounds | None], sizes: Sequence[int]) -> Labels:
    for dim, start in starts.items():
        labels = _cut_along(labels, start, dim, sizes[dim])
    return labels


def _cut_along(labels: Labels, start: Bounds | None, dim: int, size: int) -> Labels:
    last = labels.shape[dim] - size
    if start is not None:
        first = start.each(lambda places: np.clip(places, 0, last))
        if first.are_all_known:
            return taken(labels, dim, first.low[..., None] + np.arange(size))
        labels = taken(labels, dim, Bounds(first.low, first.high + size - 1).every())
    one = over(labels.owners, labels.axes(dim))
    return taken(Labels(labels.digits, one), dim, np.zeros(size, np.int64))


def select(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels | None:
    """Labels of what is chosen from two sides; None where it is not known where from which."""
    told = told_choice(owners, op)
    if told is None:
        return None
    dim, is_first = told
    places = np.arange(len(is_first))
    sides = [np.where(own, places, -1) for own in (is_first, ~is_first)]
    return joined([taken(x, dim, side) for x, side in zip(operands[1:], sides, strict=True)])


def told_choice(owners: Owners, op: Operation) -> Choice | None:
    """Of a select, where along which dimension it takes its first side, [n], if that is known and
    it does so all along the others and at every step.
    """
    if op.name != SELECT or not is_shared(owners.of(op.operands[0])):
        return None
    if op.results[0] not in owners.choices:
        found = bounds_of(owners, op.operands[0])
        known = None if found is None else found.numbers
        shapes = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
        owners.choices[op.results[0]] = None if known is None else _choice(known, *shapes)
    return owners.choices[op.results[0]]


def _choice(known: Numbers, asked: tuple[int, ...], shape: tuple[int, ...]) -> Choice | None:
    """`known`: truths, [*steps, *asked]; asked once or element by element of a shape."""
    steps = known.ndim - len(asked)
    truths = known.astype(bool).reshape((*known.shape[:steps], *(asked or [1] * len(shape))))
    axes = [axis for axis, size in enumerate(truths.shape) if size > 1 and _varies(truths, axis)]
    if 0 in shape or not shape or len(axes) > 1 or any(axis < steps for axis in axes):
        return None
    axis = axes[0] if axes else steps
    along = np.moveaxis(truths, axis, 0).reshape(truths.shape[axis], -1)[:, 0]
    return axis - steps, np.broadcast_to(along, (shape[axis - steps],))


def _varies(numbers: Numbers, axis: int) -> bool:
    return bool((numbers != numbers.take([0], axis)).any())


def dynamic_update_slice(
    owners: Owners, op: Operation, operands: Sequence[Labels], by_step: bool = False
) -> Labels:
    """Labels of an array behind an update that starts at given indices; `by_step`: at each step by
    itself, where these are known.
    """
    shape, ranges, steps = mlir.shape(op.results[0]), ranges_of(owners, op), owners.steps
    asked = [spread(x, operands[1].shape) for x in operands[2:] if not x.is_nobodys]
    new = owners.intern(joined([operands[1], *asked]))
    key = (op.name, operands[0], new, shape, tuple(map(_key_of, ranges)), steps, by_step)

    def written() -> Labels:
        spots = [known_spot(spot) for spot in ranges]
        old = cleared(steps, operands[0], operands[1].shape, spots, shape, by_step)
        return joined([old, landed(steps, new, ranges, shape, by_step=by_step)])

    return owners.remembered(key, written)


def gather(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels:
    """Result[batch, offset] = operand[start(batch) + offset], clamped."""
    windows, shape = windows_of(op), mlir.shape(op.results[0])
    source = all_whole(operands[0].inside(owners.steps))
    dims = [dim for dim in range(len(source.shape)) if source.varies_along(dim)]
    ranges = {dim: range_of(owners, op, windows, dim) for dim in dims}
    found = _looked_up(owners.steps, windows.rank, source, ranges, shape)
    return joined([found, *_of_indices(operands[1], windows, shape)])


def _looked_up(
    steps: int,
    rank: int,
    source: Labels,
    ranges: Mapping[int, Bounds | int | None],
    shape: Sequence[int],
) -> Labels:
    """The owners at places of an array. Those along one dimension may be ranges, of which all
    places are looked at, along one more axis.
    """
    labels, picked, opened = source.owners, list[Places](), first_open(ranges)
    for dim, length in enumerate(source.shape):
        spot = ranges.get(dim)
        if isinstance(spot, int):
            picked.append(along(length, spot, rank)[..., None])
        elif isinstance(spot, Bounds) and (spot.are_all_known or dim == opened):
            picked.append(spot.every())
        else:
            labels = over(labels, source.axes(dim))
            picked.append(np.zeros([1] * (rank + 1), np.int64))
    count = max((places.shape[-1] for places in picked), default=1)
    every = _picked(labels, steps, picked, (*shape, count))
    last = every.owners.ndim - 1
    return Labels(every.digits[:-1], over(every.owners, [last]).squeeze(last))


def gathered_from(owners: Owners, op: Operation, labels: Labels) -> Labels:
    """For each element of what is gathered from, the owner of what is made of it; `labels`: of the
    result.
    """
    windows, shape = windows_of(op), mlir.shape(op.operands[0])
    ranges = [range_of(owners, op, windows, dim) for dim in range(len(shape))]
    return landed(owners.steps, labels, ranges, shape)


def _picked(labels: Any, steps: int, picked: list[Places], shape: Sequence[int]) -> Labels:
    """The owners at these places of an array [*steps, *operand]."""
    rank = steps + len(shape)
    every_step = np.ix_(*(range(size) for size in labels.shape[:steps]))
    lead = [x.reshape(*x.shape, *[1] * len(shape)) for x in every_step]
    places = [*lead, *(_of_rank(x, rank) for x in picked)]
    check_count(*np.broadcast_shapes(*(x.shape for x in places)))
    found = np.asarray(labels[tuple(places)], np.int32)
    return Labels(tuple((size,) for size in shape), _of_rank(found, rank))


def _of_rank(x: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
    """With axes of size 1 in front."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _of_indices(indices: Labels, windows: Windows, shape: Sequence[int]) -> list[Labels]:
    """The owners of the indices, for all that is found or put there."""
    if indices.is_nobodys or 0 in indices.shape:
        return []
    flat = all_whole(indices)
    labels = flat.owners
    if windows.vector_dim < len(flat.digits):
        axis = flat.steps + windows.vector_dim
        labels = over(labels, [axis]).squeeze(axis)
    placed = in_batch(labels, windows.batch, len(shape), flat.steps).astype(np.int32)
    return [Labels(tuple((size,) for size in shape), placed)]


def scatter(
    owners: Owners, op: Operation, operands: Sequence[Labels], by_step: bool = False
) -> tuple[Labels, Labels, Labels]:
    """The labels of what a scatter puts, each with those of its index; where they land; and of what
    was there. `by_step`: at each step by itself, where the places are known.
    """
    shape, ranges = mlir.shape(op.results[0]), ranges_of(owners, op)
    spots = [known_spot(spot) for spot in ranges]
    asked = _of_indices(operands[1], windows_of(op), mlir.shape(op.operands[2]))
    new = joined([operands[2], *asked])
    old = operands[0]
    if linearity.overwrites(op) and _whole_windows_fit(owners, op):
        old = cleared(owners.steps, old, new.shape, spots, shape, by_step)
    return new, landed(owners.steps, new, ranges, shape, drops=True, by_step=by_step), old


def _whole_windows_fit(owners: Owners, op: Operation) -> bool:
    """Whether a scatter's windows start at zero along dimensions as long as they are: elsewhere
    they are dropped.
    """
    windows = windows_of(op)
    shape, indices = mlir.shape(op.operands[0]), op.operands[1]
    whole = [k for dim, k in windows.columns.items() if windows.sizes[dim] == shape[dim] > 0]
    starts = [column(owners, indices, k, windows.vector_dim) for k in whole]
    return all(start is not None and not start.any() for start in starts)
