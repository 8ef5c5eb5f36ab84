"""Updated rows: what nobody owns and is put into some of the examples' rows, and not into others'.

    %r = scatter %l, %c at row 0      %l: a row for each example; %c: nobody's

It is example 0's, though no example reaches it, as where examples are taken apart.
"""

import math
from collections.abc import Sequence

import numpy as np

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    ELEMENTWISE,
    Owned,
    is_shared,
    owned_operands,
)
from hlo_surgery.passes.owners.labelling.digits import all_whole
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels, Places
from hlo_surgery.passes.owners.labelling.landing import Spot
from hlo_surgery.passes.owners.labelling.spots import UPDATES, along, spots_of, windows_of
from hlo_surgery.passes.owners.owners import Owners

RETURNS = ("stablehlo.return", "func.return", mlir.BARRIER)
# What takes all sums of groups alike, or by weights that lie beside them.
ALIKE = ELEMENTWISE | frozenset(
    f"stablehlo.{name}"
    for name in (
        *("broadcast_in_dim", "concatenate", "dot_general", "dynamic_update_slice"),
        *("reduce", "reshape", "reverse", "scatter", "transpose"),
    )
)


def updates_some(owners: Owners, op: Operation) -> bool:
    """Whether an op may put other constants into some examples' rows than into others', or takes
    groups' sums otherwise than all alike.
    """
    flows = op.name in mlir.CONTROL_FLOW or op.name in RETURNS
    picks = not flows and op.name not in ALIKE and any(v in owners.grouped for v in op.operands)
    return picks or _lands_on_some(owners, op) or _adds_by_step(owners, op)


def _lands_on_some(owners: Owners, op: Operation) -> bool:
    if op.name not in UPDATES or len(op.results) > 1:
        return False
    array, update = (op.operands[i] for i in UPDATES[op.name])
    if not is_shared(owners.of(update)):
        return False
    known = owners.of(array)
    labels = known.labels if isinstance(known, Owned) else owners.grouped.get(array)
    if is_shared(known):
        return op.results[0] in owners.beside and not _stacks_all(owners, op)
    return labels is not None and labels.varies and not _lands_on_all(owners, op, labels, update)


def _stacks_all(owners: Owners, op: Operation) -> bool:
    """Whether an update is that of a loop whose steps together write all of the array."""
    loops = mlir.enclosing_loops(op)
    loop = counted_loop(owners, loops[0]) if loops else None
    if loop is None or op.name != "stablehlo.dynamic_update_slice":
        return False
    whole, part = (math.prod(mlir.shape(v)) for v in list(op.operands)[:2])
    return whole == part * loop.trips


def _lands_on_all(owners: Owners, op: Operation, labels: Labels, update: Value) -> bool:
    """Whether the same lands on as many elements of each example."""
    dims = [dim for dim in range(len(labels.shape)) if labels.varies_along(dim)]
    beside = {dim: _runs_along(op, dim) for dim in dims}
    if None not in beside.values():
        pairs = [(dim, own) for dim, own in beside.items() if own is not None]
        return all(_is_even(update, labels, dim, own) for dim, own in pairs)
    if mlir.enclosing_loops(op) or labels.steps:
        return False
    spots = spots_of(owners, op)
    moved = {own for dim in dims for own in _moved_along(spots[dim])}
    alike = all(is_uniform(update, PerExample(own), mlir.shape(update)[own]) for own in moved)
    return alike and _counts_are_even(spots, labels, update)


def _moved_along(spot: Spot) -> list[int]:
    """The dimensions of an update along which its elements land on other places."""
    if isinstance(spot, int):
        return [spot]
    sizes = [] if spot is None else spot.shape
    return [dim for dim, size in enumerate(sizes) if size > 1]


def _runs_along(op: Operation, dim: int) -> int | None:
    """The dimension of an update that runs along one of the array, all of it."""
    length = mlir.shape(op.operands[0])[dim]
    if op.name == "stablehlo.dynamic_update_slice":
        return dim if mlir.shape(op.operands[1])[dim] == length else None
    windows = windows_of(op)
    is_window = dim in windows.own and windows.sizes[dim] == length
    return windows.own[dim] if is_window else windows.alike.get(dim)


def _is_even(update: Value, labels: Labels, dim: int, own: int) -> bool:
    """Whether an update is the same for all examples along one of its dimensions."""
    group, first = labels.digits[dim], labels.axes(dim).start
    for axis in range(len(group)):
        along = PerExample(own, math.prod(group[:axis]), math.prod(group[axis + 1 :]))
        varied = labels.owners.shape[first + axis] > 1
        if varied and not is_uniform(update, along, group[axis]):
            return False
    return True


def _counts_are_even(spots: Sequence[Spot], labels: Labels, update: Value) -> bool:
    """Whether as many elements land on each example's, at places that are all known."""
    rows, rank = all_whole(labels).owners, len(mlir.shape(update))
    index: list[Places] = []
    for dim, spot in enumerate(spots):
        if rows.shape[dim] == 1:
            index.append(np.zeros([1] * rank, np.int64))
        elif spot is None:
            return False
        else:
            index.append(along(rows.shape[dim], spot, rank) if isinstance(spot, int) else spot)
    places = np.broadcast_arrays(*index)
    inside = [(p >= 0) & (p < n) for p, n in zip(places, rows.shape, strict=True)]
    hit = rows[tuple(p[np.logical_and.reduce(inside)] for p in places)]
    numbers = np.unique(rows[rows != NONE])
    counts = np.bincount(np.searchsorted(numbers, hit[hit != NONE]), minlength=numbers.size)
    return len(set(counts.tolist())) == 1


def _adds_by_step(owners: Owners, op: Operation) -> bool:
    """Whether what an op adds to a step's examples may differ from step to step."""
    if not owners.part_loops or op.name in mlir.CONTROL_FLOW:
        return False
    own = owned_operands(owners.at(op))
    loops = [loop for loop in mlir.enclosing_loops(op) if loop.results[0] in owners.part_loops]
    if not own or not loops or len(own) == len(op.operands):
        return False
    added = [
        value
        for i, value in enumerate(op.operands)
        if i not in own and is_shared(owners.of(value)) and linearity.is_linear(op, own | {i})
    ]
    return any(varies(owners.varying, loop, value) for loop in loops for value in added)
