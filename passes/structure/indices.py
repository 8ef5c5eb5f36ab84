"""Indices: places that numbers name, where these count along a dimension or by a loop's steps.

%r = dynamic_slice %x [T, D], %i, 0       %i: each of T once     the step's place of T
%r = gather %h [B, V] at (b, %labels[b])  b: iota                each example's own row
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_surgery.passes.dataflow.numbers import Counters, Numbers
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import gather_numbers, integers, scatter_numbers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.structure.digits import Digit, unify
from hlo_surgery.passes.structure.pieces import size_of, take
from hlo_surgery.passes.structure.rules import Link, align, moving
from hlo_surgery.passes.structure.structure import Structure


def dynamic_slice(known: Structure, op: Operation) -> Link:
    """The link of a slice at numbers."""
    whole, *starts = op.operands
    link = moving([mlir.shape(whole), *((),) * len(starts)], [mlir.shape(op.results[0])])
    for dim, start in enumerate(starts):
        pair = known.of(whole)[dim], known.of(op.results[0])[dim]
        if not _by_step(known, link, dim, pair, start):
            low = _constant(known, start)
            sizes = [size_of(digits) for digits in pair]
            if low is None and sizes[0] != sizes[1]:
                link.operands[0][dim] = link.results[0][dim] = None
            else:
                take(known, link, dim, pair, min(max(low or 0, 0), sizes[0] - sizes[1]))
    return link


def dynamic_update_slice(known: Structure, op: Operation) -> Link:
    """The link of an update at numbers."""
    whole, part, *starts = op.operands
    shapes = [mlir.shape(v) for v in (whole, part)]
    link = moving([*shapes, *((),) * len(starts)], shapes[:1])
    for dim, start in enumerate(starts):
        align(link, known.of(whole)[dim], known.of(op.results[0])[dim])
        pair = known.of(whole)[dim], known.of(part)[dim]
        if size_of(pair[0]) == size_of(pair[1]):
            align(link, *pair)
        elif not _by_step(known, link, dim, pair, start):
            link.operands[0][dim] = link.operands[1][dim] = link.results[0][dim] = None
    return link


def _by_step(
    known: Structure, link: Link, dim: int, pair: tuple[list[Digit], list[Digit]], start: Value
) -> bool:
    """Whether a part of a dimension is that of a loop's step, one step for each."""
    whole, part = pair
    sizes = [size_of(digits) for digits in pair]
    digit = _step_digit(known, lambda counters: known.told.numbers(start, counters), *sizes)
    if digit is None or not unify([digit, *part], whole):
        return False
    link.steps[dim] = digit
    return True


def _step_digit(
    known: Structure, numbers: Callable[[Counters], Numbers | None], size: int, run: int
) -> Digit | None:
    """The digit that counts the runs of a dimension of some size, of which each step of a loop
    takes one, whichever: `numbers(counters)`, where they start.
    """
    if size == run:
        return None
    for loop in reversed(known.around):
        told = numbers(loop.counters)
        if told is not None:
            starts = told.reshape(len(told), -1)
            fits = starts.shape == (loop.trips, 1) and loop.trips * run == size
            order = starts[:, 0].astype(np.int64) if fits else np.zeros(0, np.int64)
            is_whole = fits and bool((np.sort(order) == run * np.arange(loop.trips)).all())
            return loop.digit(tuple((order // run).tolist())) if is_whole else None
    return None


def _constant(known: Structure, start: Value) -> int | None:
    told = known.told.numbers(start, None)
    return None if told is None else int(told.reshape(-1)[0])


@dataclass(frozen=True)
class Lookup:
    """A gather or scatter. Index vectors lie along dimension `vector` of the indices, one at each
    of `places`, along which `rows` of what is looked up or written run. Number k of a vector names
    a place along dimension `named[k]` of the operand, whose `single` ones are taken one by one.
    """

    named: Sequence[int]
    single: Collection[int]
    vector: int
    places: Sequence[int]
    rows: Sequence[int]


def _lookup(op: Operation) -> Lookup | None:
    if op.name == "stablehlo.gather":
        gathers = gather_numbers(op)
        single = [d for d, n in enumerate(integers(op, "slice_sizes")) if n == 1]
        vector, offsets = gathers.index_vector_dim, gathers.offset_dims
        named, moved = gathers.start_index_map, op.results[0]
    elif op.name == "stablehlo.scatter" and len(op.results) == 1:
        scatters = scatter_numbers(op)
        single, vector = list(scatters.inserted_window_dims), scatters.index_vector_dim
        offsets, moved = scatters.update_window_dims, op.operands[2]
        named = scatters.scattered_dims_to_operand_dims
    else:
        return None
    places = [d for d in range(len(mlir.shape(op.operands[1]))) if d != vector]
    rows = [d for d in range(len(mlir.shape(moved))) if d not in list(offsets)]
    return Lookup(list(named), single, vector, places, rows) if len(places) == len(rows) else None


def align_own_rows(known: Structure, op: Operation, link: Link) -> None:
    """Where a column of indices counts along a dimension of theirs, or is a loop's step, it names
    each row's own place.
    """
    lookup = _lookup(op)
    for number, dim in enumerate(lookup.named if lookup else []):
        if lookup and dim in lookup.single and mlir.shape(op.operands[0])[dim] > 1:
            _align_column(known, op, link, lookup, number, dim)


def _align_column(
    known: Structure, op: Operation, link: Link, lookup: Lookup, number: int, dim: int
) -> None:
    indices, size = op.operands[1], mlir.shape(op.operands[0])[dim]
    shape, key = mlir.shape(indices), (-1 - dim,)
    written = op.name == "stablehlo.scatter"

    def column(counters: Counters | None) -> Numbers | None:
        return known.told.column(indices, number, lookup.vector, counters)

    told = None
    if all(shape[place] == 1 for place in lookup.places):
        digit = _step_digit(known, column, size, 1)
        if digit is None or not unify([digit], known.of(op.operands[0])[dim]):
            return
        link.steps[dim] = digit
    else:
        told = column(None)
        counted = [place for place in lookup.places if _counts(told, lookup, place, size)]
        if not counted:
            return
        row = lookup.rows[lookup.places.index(counted[0])]
        (link.operands[2] if written else link.results[0])[row] = key
        link.operands[1][counted[0]] = key
    link.operands[0][dim] = key
    if written:
        link.results[0][dim] = key


def _counts(told: Numbers | None, lookup: Lookup, place: int, size: int) -> bool:
    """Whether numbers are 0 to size - 1 along a place, whatever the others."""
    if told is None:
        return False
    axis = 1 + lookup.places.index(place)
    along = [1] * told.ndim
    along[axis] = told.shape[axis]
    counting = np.arange(told.shape[axis]).reshape(along)
    return told.shape[axis] == size and bool((told == counting).all())
