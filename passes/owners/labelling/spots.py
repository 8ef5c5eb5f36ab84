"""Spots: where the elements of indexed moves lie in the array that they are taken from, or put in.

    gather %h, %i      0 <= %i[b] - 4 b <= 3      along the rows: 4 b to 4 b + 3

A place is known, or lies in a range, by the bounds of its index, or runs along a dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import gather_numbers, scatter_numbers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.bounds import Bounds, all_known, narrowed
from hlo_surgery.passes.owners.labelling.indices import column_bounds
from hlo_surgery.passes.owners.labelling.labels import Labels, Places
from hlo_surgery.passes.owners.labelling.landing import Spot, known_spot
from hlo_surgery.passes.owners.owners import Owners

# By name of an op, the operands that are an array and its update.
UPDATES = {"stablehlo.scatter": (0, 2), "stablehlo.dynamic_update_slice": (0, 1)}


def spots_of(owners: Owners, op: Operation) -> list[Spot]:
    """Where along each dimension the elements of an update, or of a scatter's, land."""
    return [known_spot(spot) for spot in ranges_of(owners, op)]


def are_seen(owners: Owners, op: Operation, source: Labels) -> bool:
    """Whether the places of an indexed move are known; of what is taken from an array, those along
    which its owners vary, by `source`.
    """
    if op.name in UPDATES:
        return all(spot is not None for spot in spots_of(owners, op))
    dims = [dim for dim in range(len(source.shape)) if source.varies_along(dim)]
    if op.name == "stablehlo.gather":
        ranges = [range_of(owners, op, windows_of(op), dim) for dim in dims]
    else:
        sizes = mlir.shape(op.results[0])
        cut = [dim for dim in dims if sizes[dim] != source.shape[dim]]
        ranges = [start_of(owners, op.operands[1 + dim]) for dim in cut]
    return all(known_spot(found) is not None for found in ranges)


def lands_alike(owners: Owners, op: Operation, labels: Labels) -> bool:
    """Whether what is put by an update, or a scatter, lands on as many places of each owner along
    all dimensions along which these vary, by `labels`.
    """
    ranges = enumerate(ranges_of(owners, op))
    return all(_is_even(r, labels.shape[dim]) for dim, r in ranges if labels.varies_along(dim))


def runs_beside(owners: Owners, op: Operation, labels: Labels) -> bool:
    """Whether what is put runs along with the array, along all dimensions along which owners
    vary, by `labels`.
    """
    ranges = enumerate(ranges_of(owners, op))
    return all(isinstance(r, int) for dim, r in ranges if labels.varies_along(dim))


def _is_even(places: Bounds | int | None, size: int) -> bool:
    """Whether they are as many at each of so many places."""
    known = known_spot(places)
    if known is None or isinstance(known, int):
        return known is not None
    inside = known[(known >= 0) & (known < size)]
    return len(set(np.bincount(inside, minlength=size).tolist())) == 1


def ranges_of(owners: Owners, op: Operation) -> list[Bounds | int | None]:
    """Between which places along each dimension they land."""
    shape = mlir.shape(op.results[0])
    if op.name == "stablehlo.dynamic_update_slice":
        sizes = mlir.shape(op.operands[1])
        indices = enumerate(list(op.operands)[2:])
        return [_update_spot(owners, index, dim, shape, sizes) for dim, index in indices]
    windows = windows_of(op)
    return [range_of(owners, op, windows, dim) for dim in range(len(shape))]


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


def range_of(owners: Owners, op: Operation, windows: Windows, dim: int) -> Bounds | int | None:
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
        return all_known(inner)
    start = column_bounds(owners, op.operands[1], windows.columns[dim], windows.vector_dim)
    if start is None:
        return None
    # What a gather would take from outside is taken from the edge; a scatter drops it, wherever.
    edges = (0, length - size) if op.name == "stablehlo.gather" else (-size, length)
    start = start.each(lambda first: np.clip(first, *edges))
    if _is_anywhere(start, length - size):
        return None
    # NumPy adds arrays of no dimension to a number, which is no array of places.
    placed = start.each(
        lambda first: np.asarray(inner + in_batch(first, windows.batch, windows.rank, owners.steps))
    )
    return placed if placed.are_all_known else narrowed(placed, 0)


def _is_anywhere(start: Bounds, last: int) -> bool:
    """Whether bounds leave all of a dimension open, as no bounds do."""
    return not start.are_all_known and bool((start.low <= 0).all() and (start.high >= last).all())


def _update_spot(
    owners: Owners, index: Value, dim: int, shape: Sequence[int], sizes: Sequence[int]
) -> Bounds | int | None:
    if sizes[dim] == shape[dim]:
        return dim
    start = start_of(owners, index)
    if start is None:
        return None
    rank = len(sizes)

    def placed(start: Places) -> Places:
        first = np.clip(start, 0, shape[dim] - sizes[dim])
        return first.reshape((*first.shape, *[1] * rank)) + along(sizes[dim], dim, rank)

    return start.each(placed)


def along(size: int, dim: int, rank: int) -> Places:
    """0 .. size-1 along one of `rank` dimensions."""
    sizes = [1] * rank
    sizes[dim : dim + 1] = [size] if rank else []
    return np.arange(size).reshape(sizes)


def start_of(owners: Owners, index: Value) -> Bounds | None:
    """Between which numbers a scalar index lies: [*steps]."""
    return column_bounds(owners, index, 0, 0)


def in_batch(numbers: Any, batch: Sequence[int], rank: int, steps: int) -> Any:
    """[*steps, *batch] with the batch dimensions at their places among `rank`."""
    sizes = [*numbers.shape[:steps], *[1] * rank]
    for k, dim in enumerate(batch):
        sizes[steps + dim] = numbers.shape[steps + k]
    return numbers.reshape(sizes)
