"""Indexed moves: slices, updates, gathers and scatters, whose places are known at every step or
not.

    gather    an element at a known place has that element's owner; where the place is not known,
              it has the owner of all that may be meant: sound, since it is one of them
    update    an element is one of those that may land on it, or what was there before: their
              joint owner is the owner of either

An index that an example owns owns what is found or put there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import gather_numbers, scatter_numbers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.digits import all_whole
from hlo_surgery.passes.owners.labelling.frames import joined
from hlo_surgery.passes.owners.labelling.indices import column, places
from hlo_surgery.passes.owners.labelling.labels import (
    Labels,
    Places,
    check_count,
    over,
)
from hlo_surgery.passes.owners.labelling.landing import Spot, cleared, landed
from hlo_surgery.passes.owners.labelling.moves import spread, taken
from hlo_surgery.passes.owners.owners import Owners


def dynamic_slice(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels:
    """Labels of a slice that starts at given indices."""
    whole, sizes = operands[0], mlir.shape(op.results[0])
    cut = [dim for dim, size in enumerate(sizes) if size != whole.shape[dim]]
    starts = {dim: _start(owners, op.operands[1 + dim], whole, dim) for dim in cut}
    spots = tuple((dim, _key_of(start)) for dim, start in starts.items())
    key = (op.name, whole, sizes, spots, owners.steps)
    labels = owners.remembered(key, lambda: _cut(whole.inside(owners.steps), starts, sizes))
    return joined([labels, *(spread(x, sizes) for x in operands[1:] if not x.is_nobodys)])


def _start(owners: Owners, index: Value, labels: Labels, dim: int) -> Places | None:
    return places(owners, index) if labels.varies_along(dim) else None


def _key_of(spot: Spot) -> object:
    """What tells places from others."""
    return (spot.shape, spot.tobytes()) if isinstance(spot, np.ndarray) else spot


def _cut(labels: Labels, starts: dict[int, Places | None], sizes: Sequence[int]) -> Labels:
    for dim, start in starts.items():
        labels = _cut_along(labels, start, dim, sizes[dim])
    return labels


def _cut_along(labels: Labels, start: Places | None, dim: int, size: int) -> Labels:
    length = labels.shape[dim]
    if start is None:
        one = over(labels.owners, labels.axes(dim))
        return taken(Labels(labels.digits, one), dim, np.zeros(size, np.int64))
    first = np.clip(start, 0, length - size)
    return taken(labels, dim, first[..., None] + np.arange(size))


def dynamic_update_slice(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels:
    """Labels of an array behind an update that starts at given indices."""
    shape, spots = mlir.shape(op.results[0]), spots_of(owners, op)
    steps, own = owners.steps, tuple(map(_key_of, spots))
    key = (op.name, operands[0], operands[1], shape, own, steps)

    def written() -> Labels:
        new = landed(steps, operands[1], spots, shape)
        return joined([cleared(steps, operands[0], spots, shape, separable=True), new])

    return joined(
        [
            owners.remembered(key, written),
            *(spread(x, shape) for x in operands[2:] if not x.is_nobodys),
        ]
    )


def spots_of(owners: Owners, op: Operation) -> list[Spot]:
    """Where along each dimension the elements of an update, or of a scatter's, land."""
    shape = mlir.shape(op.results[0])
    if op.name == "stablehlo.dynamic_update_slice":
        sizes = mlir.shape(op.operands[1])
        indices = enumerate(list(op.operands)[2:])
        return [_update_spot(owners, index, dim, shape, sizes) for dim, index in indices]
    windows = windows_of(op)
    return [_spot(owners, op, windows, dim) for dim in range(len(shape))]


@dataclass(frozen=True)
class Windows:
    """How windows lie in an array, of a gather's operand or a scatter's, and in what is taken from
    it or put there, which has a dimension for each in `batch` and each in `own`.

    By dimension of the array: `own`, that of the windows, of all but single places; `alike`, that
    of the batch which runs along; `columns`, the number of an index vector that says where.
    `sizes`: of a window, by dimension of the array.
    """

    own: Mapping[int, int]
    alike: Mapping[int, int]
    columns: Mapping[int, int]
    batch: Sequence[int]
    vector_dim: int
    sizes: Sequence[int]

    @property
    def rank(self) -> int:
        """The number of dimensions of what is taken, or put."""
        return len(self.batch) + len(self.own)


def windows_of(op: Operation) -> Windows:
    """Those of a gather or a scatter."""
    if op.name == "stablehlo.gather":
        numbers = gather_numbers(op)
        own, single = numbers.offset_dims, numbers.collapsed_slice_dims
        beside, along = numbers.operand_batching_dims, numbers.start_indices_batching_dims
        columns, moved = numbers.start_index_map, mlir.shape(op.results[0])
    else:
        numbers = scatter_numbers(op)
        own, single = numbers.update_window_dims, numbers.inserted_window_dims
        beside, along = numbers.input_batching_dims, numbers.scatter_indices_batching_dims
        columns, moved = numbers.scattered_dims_to_operand_dims, mlir.shape(op.operands[2])
    vector_dim, rank = int(numbers.index_vector_dim), len(mlir.shape(op.operands[0]))
    batch = [dim for dim in range(len(moved)) if dim not in list(own)]
    alone = {*single, *beside}
    windowed = [dim for dim in range(rank) if dim not in alone]
    places = dict(zip(windowed, own, strict=True))
    return Windows(
        own=places,
        alike={dim: batch[k - (k > vector_dim)] for dim, k in zip(beside, along, strict=True)},
        columns={dim: column for column, dim in enumerate(columns)},
        batch=batch,
        vector_dim=vector_dim,
        sizes=[moved[places[dim]] if dim in places else 1 for dim in range(rank)],
    )


def _spot(owners: Owners, op: Operation, windows: Windows, dim: int) -> Spot:
    """Where along a dimension of the array each element lies that is taken, or put."""
    length, size = mlir.shape(op.operands[0])[dim], windows.sizes[dim]
    if dim in windows.alike:
        return windows.alike[dim]
    if dim in windows.own and size == length:
        return windows.own[dim]
    inner = np.zeros([1] * (owners.steps + windows.rank), np.int64)
    if dim in windows.own:
        inner = inner + along(size, windows.own[dim], windows.rank)
    if dim not in windows.columns:
        return inner
    start = column(owners, op.operands[1], windows.columns[dim], windows.vector_dim)
    if start is None:
        return None
    # What a gather would take from outside is taken from the edge; a scatter drops it.
    first = np.clip(start, 0, length - size) if op.name == "stablehlo.gather" else start
    # NumPy adds arrays of no dimension to a number, which is no array of places.
    return np.asarray(inner + _in_batch(first, windows.batch, windows.rank, owners.steps))


def _update_spot(
    owners: Owners, index: Value, dim: int, shape: Sequence[int], sizes: Sequence[int]
) -> Spot:
    if sizes[dim] == shape[dim]:
        return dim
    start = places(owners, index)
    if start is None:
        return None
    first = np.clip(start, 0, shape[dim] - sizes[dim])
    rank = len(sizes)
    return first.reshape((*first.shape, *[1] * rank)) + along(sizes[dim], dim, rank)


def along(size: int, dim: int, rank: int) -> Places:
    """0 .. size-1 along one of `rank` dimensions."""
    sizes = [1] * rank
    sizes[dim : dim + 1] = [size] if rank else []
    return np.arange(size).reshape(sizes)


def gather(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels:
    """Result[batch, offset] = operand[start(batch) + offset], clamped."""
    windows, shape = windows_of(op), mlir.shape(op.results[0])
    source = all_whole(operands[0].inside(owners.steps))
    labels = source.owners
    picked: list[Places] = []
    for dim, length in enumerate(source.shape):
        spot = _spot(owners, op, windows, dim) if source.varies_along(dim) else None
        if spot is None:
            labels = over(labels, source.axes(dim))
            spot = np.zeros([1] * windows.rank, np.int64)
        picked.append(along(length, spot, windows.rank) if isinstance(spot, int) else spot)
    found = _picked(labels, owners.steps, picked, shape)
    return joined([found, *_of_indices(operands[1], windows, shape)])


def gathered_from(owners: Owners, op: Operation, labels: Labels) -> Labels:
    """For each element of what is gathered from, the owner of what is made of it; `labels`: of the
    result.
    """
    windows, shape = windows_of(op), mlir.shape(op.operands[0])
    spots = [_spot(owners, op, windows, dim) for dim in range(len(shape))]
    return landed(owners.steps, labels, spots, shape)


def _in_batch(numbers: Any, batch: Sequence[int], rank: int, steps: int) -> Any:
    """[*steps, *batch] with the batch dimensions at their places among `rank`."""
    sizes = [*numbers.shape[:steps], *[1] * rank]
    for k, dim in enumerate(batch):
        sizes[steps + dim] = numbers.shape[steps + k]
    return numbers.reshape(sizes)


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
    placed = _in_batch(labels, windows.batch, len(shape), flat.steps).astype(np.int32)
    return [Labels(tuple((size,) for size in shape), placed)]


def scatter(
    owners: Owners, op: Operation, operands: Sequence[Labels]
) -> tuple[Labels, Labels, Labels]:
    """The labels of what a scatter puts, each with those of its index; where they land; and of what
    was there.
    """
    shape, spots = mlir.shape(op.results[0]), spots_of(owners, op)
    asked = _of_indices(operands[1], windows_of(op), mlir.shape(op.operands[2]))
    new = joined([operands[2], *asked])
    old = operands[0]
    if linearity.overwrites(op) and _whole_windows_fit(owners, op):
        old = cleared(owners.steps, old, spots, shape, separable=False)
    return new, landed(owners.steps, new, spots, shape, drops=True), old


def _whole_windows_fit(owners: Owners, op: Operation) -> bool:
    """Whether a scatter's windows start at zero along dimensions as long as they are: elsewhere
    they are dropped.
    """
    windows = windows_of(op)
    shape, indices = mlir.shape(op.operands[0]), op.operands[1]
    whole = [k for dim, k in windows.columns.items() if windows.sizes[dim] == shape[dim] > 0]
    starts = [column(owners, indices, k, windows.vector_dim) for k in whole]
    return all(start is not None and not start.any() for start in starts)
