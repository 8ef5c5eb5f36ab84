"""Pieces: static parts of a dimension, taken, put back and laid side by side.

    slice %x [B, D] -> [0:b, D]               places 0 to b of B: a digit of its own
    concatenate [B, D], [B, D] -> [2 * B, D]  two views: a digit of 2 in front of B
    slice %v [2 * B, D] -> [0:B, D]           one of the views: B again
    slice %x [B * 2, D] -> [0::2, D]          one place of a minor digit: B
    slice %x [B, D] -> [i:i+1, D]             one place, i

A pad is what such a slice becomes backwards.

Indices: places that numbers name, where these count along a dimension or by a loop's steps.

%r = dynamic_slice %x [T, D], %i, 0       %i: each of T once     the step's place of T
%r = gather %h [B, V] at (b, %labels[b])  b: iota                each example's own row
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hlo_surgery.passes.dataflow.numbers import Counters, Numbers, Told
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import gather_numbers, integer, integers, pads, scatter_numbers
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves, size_of, unify
from hlo_surgery.passes.structure.structure import (
    CountedLoop,
    Link,
    Lookup,
    Structure,
    align,
    moving,
)


@dataclass
class Unifying(Structure):
    """A structure that is being filled. `kinds`: the links of all ops that are alike; `told`: what
    is known of integers; `around`: the counted loops around what is visited now, outermost first.
    """

    kinds: dict[object, Link | None] = field(default_factory=dict)
    told: Told = field(default_factory=Told)
    around: list[CountedLoop] = field(default_factory=list)


def sliced(known: Unifying, op: Operation) -> Link:
    """The link of a slice."""
    whole, part = op.operands[0], op.result
    link = moving([mlir.shape(whole)], [mlir.shape(part)])
    names = ("start_indices", "limit_indices", "strides")
    for dim, (low, high, stride) in enumerate(zip(*(integers(op, n) for n in names), strict=True)):
        pair = known.of(whole)[dim], known.of(part)[dim]
        single = high - low <= stride
        take(known, link, dim, pair, low, 1 if single else stride)
    return link


def _is_part(known: Unifying, whole: Digits, part: Digits, low: int) -> bool:
    """Whether a part is one of the views that a dimension holds, or places of its one digit."""
    own, sizes = leaves(whole), (size_of(whole), size_of(part))
    if len(own) > 1:
        views = own[0].size * sizes[1] == sizes[0] and low % sizes[1] == 0
        return views and unify([Digit(own[0].size), *part], whole)
    if known.piece(whole) is not None:
        return False
    return unify([known.piece_of(own[0], low, low + sizes[1])], part)


def take(
    known: Unifying,
    link: Link,
    dim: int,
    pair: tuple[Digits, Digits],
    low: int,
    stride: int = 1,
    lies: Callable[[Unifying, Digits, Digits, int], bool] = _is_part,
) -> None:
    """Link a dimension with the part of it that begins at `low`: `pair`, the digits of both;
    `lies`: whether it lies there in one piece.
    """
    whole, part = pair
    sizes = [size_of(digits) for digits in pair]
    if sizes[0] == sizes[1]:
        aligned = unify(whole, part)
    elif sizes[1] == 1:
        link.places[dim] = low
        return
    elif stride > 1:
        # One place of a minor digit, wherever the major ones are.
        strided = sizes[1] * stride == sizes[0] and low < stride
        aligned = strided and unify([*part, Digit(stride)], whole)
    else:
        aligned = lies(known, whole, part, low)
    if not aligned:
        link.forget(dim)


def padded(known: Unifying, op: Operation) -> Link:
    """The link of a pad."""
    part, whole = op.operands[0], op.result
    link = moving([mlir.shape(part), ()], [mlir.shape(whole)])
    for dim, (low, high, within) in enumerate(pads(op)):
        if low < 0 or high < 0:
            link.forget(dim)
        else:
            pair = known.of(whole)[dim], known.of(part)[dim]
            take(known, link, dim, pair, low, within + 1, _is_put_back)
    return link


def _is_put_back(known: Unifying, whole: Digits, part: Digits, low: int) -> bool:
    """Whether a part lies in its place, or as one of equal parts."""
    piece, sizes = known.piece(part), (size_of(part), size_of(whole))
    if piece is not None:
        in_place = piece.low == low and piece.of.root.size == sizes[1]
        return in_place and unify([piece.of], whole)
    equal = sizes[0] > 1 and sizes[1] % sizes[0] == 0 and low % sizes[0] == 0
    return equal and unify([Digit(sizes[1] // sizes[0]), *part], whole)


def concatenated(known: Unifying, op: Operation) -> Link:
    """The link of a concatenation."""
    along = integer(op, "dimension")
    shapes = [mlir.shape(v) for v in op.operands]
    link = moving(shapes, [mlir.shape(op.result)])
    filled = [v for v in op.operands if 0 not in mlir.shape(v)]
    for dim, its in enumerate(known.of(op.result)):
        if dim != along:
            for value in filled:
                align(link, known.of(value)[dim], its)
        elif not _is_joined(known, [known.of(v)[dim] for v in filled], its):
            link.forget(dim)
    return link


def _is_joined(known: Unifying, parts: list[Digits], whole: Digits) -> bool:
    """Whether parts are all of a dimension, follow each other in it, or are views of one size."""
    if len(parts) == 1:
        return unify(parts[0], whole)
    pieces = [p for p in map(known.piece, parts) if p is not None]
    if parts and len(pieces) == len(parts):
        first, last = pieces[0], pieces[-1]
        if not all(a.high == b.low and a.of.root is b.of.root for a, b in pairwise(pieces)):
            return False
        is_all = (first.low, last.high) == (0, first.of.root.size)
        own = first.of if is_all else known.piece_of(first.of, first.low, last.high)
        return unify([own], whole)
    sizes = {size_of(part) for part in parts}
    if len(sizes) != 1 or sizes == {1}:
        return False
    alike = [unify(parts[0], part) for part in parts[1:]]
    return all(alike) and unify([Digit(len(parts)), *parts[0]], whole)


def dynamic_slice(known: Unifying, op: Operation) -> Link:
    """The link of a slice at numbers."""
    whole, *starts = op.operands
    link = moving([mlir.shape(whole), *((),) * len(starts)], [mlir.shape(op.result)])
    for dim, start in enumerate(starts):
        pair = known.of(whole)[dim], known.of(op.result)[dim]
        if not _by_step(known, link, dim, pair, start):
            low = _constant(known, start)
            sizes = [size_of(digits) for digits in pair]
            if low is None and sizes[0] != sizes[1]:
                link.forget(dim)
            else:
                take(known, link, dim, pair, min(max(low or 0, 0), sizes[0] - sizes[1]))
    return link


def dynamic_update_slice(known: Unifying, op: Operation) -> Link:
    """The link of an update at numbers."""
    whole, part, *starts = op.operands
    shapes = [mlir.shape(v) for v in (whole, part)]
    link = moving([*shapes, *((),) * len(starts)], shapes[:1])
    for dim, start in enumerate(starts):
        align(link, known.of(whole)[dim], known.of(op.result)[dim])
        pair = known.of(whole)[dim], known.of(part)[dim]
        if size_of(pair[0]) == size_of(pair[1]):
            align(link, *pair)
        elif not _by_step(known, link, dim, pair, start):
            link.forget(dim)
    return link


def _by_step(
    known: Unifying, link: Link, dim: int, pair: tuple[Digits, Digits], start: Value
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
    known: Unifying, numbers: Callable[[Counters], Numbers | None], size: int, run: int
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


def _constant(known: Unifying, start: Value) -> int | None:
    told = known.told.numbers(start, None)
    return None if told is None else int(told.reshape(-1)[0])


def _lookup(op: Operation) -> Lookup | None:
    if op.name == "stablehlo.gather":
        gathers = gather_numbers(op)
        single = [d for d, n in enumerate(integers(op, "slice_sizes")) if n == 1]
        vector, offsets = gathers.index_vector_dim, gathers.offset_dims
        named, moved = gathers.start_index_map, op.result
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


def align_own_rows(known: Unifying, op: Operation, link: Link) -> None:
    """Where a column of indices counts along a dimension of theirs, or is a loop's step, it names
    each row's own place.
    """
    lookup = _lookup(op)
    if lookup and known.ragged is not None:
        link.lookup = lookup
        known.lookups.append(op)
    for number, dim in enumerate(lookup.named if lookup else []):
        if lookup and dim in lookup.single and mlir.shape(op.operands[0])[dim] > 1:
            _align_column(known, op, link, lookup, number, dim)


def _align_column(
    known: Unifying, op: Operation, link: Link, lookup: Lookup, number: int, dim: int
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
