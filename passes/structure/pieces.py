"""Pieces: static parts of a dimension, taken, put back and laid side by side.

    slice %x [B, D] -> [0:b, D]               places 0 to b of B: a digit of its own
    concatenate [B, D], [B, D] -> [2 * B, D]  two views: a digit of 2 in front of B
    slice %v [2 * B, D] -> [0:B, D]           one of the views: B again
    slice %x [B, D] -> [i:i+1, D]             one place, i

A pad is what such a slice becomes backwards.
"""

from itertools import pairwise

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.structure.digits import Digit, leaves, unify
from hlo_surgery.passes.structure.rules import Link, align, moving
from hlo_surgery.passes.structure.structure import Structure


def sliced(known: Structure, op: Operation) -> Link:
    """The link of a slice."""
    whole, part = op.operands[0], op.results[0]
    link = moving([mlir.shape(whole)], [mlir.shape(part)])
    names = ("start_indices", "limit_indices", "strides")
    for dim, (low, high, stride) in enumerate(zip(*(integers(op, n) for n in names), strict=True)):
        pair = known.of(whole)[dim], known.of(part)[dim]
        if stride > 1 and high - low > stride:
            link.operands[0][dim] = link.results[0][dim] = None
        else:
            take(known, link, dim, pair, low)
    return link


def take(
    known: Structure,
    link: Link,
    dim: int,
    pair: tuple[list[Digit], list[Digit]],
    low: int,
) -> None:
    """Link a dimension with the part of it that begins at `low`: `pair`, the digits of both."""
    whole, part = pair
    sizes = [size_of(digits) for digits in pair]
    if sizes[0] == sizes[1]:
        aligned = unify(whole, part)
    elif sizes[1] == 1:
        link.places[dim] = low
        return
    else:
        aligned = _is_part(known, whole, part, low)
    if not aligned:
        link.operands[0][dim] = link.results[0][dim] = None


def _is_part(known: Structure, whole: list[Digit], part: list[Digit], low: int) -> bool:
    """Whether a part is one of the views that a dimension holds, or places of its one digit."""
    own, sizes = leaves(whole), (size_of(whole), size_of(part))
    if len(own) > 1:
        views = own[0].size * sizes[1] == sizes[0] and low % sizes[1] == 0
        return views and unify([Digit(own[0].size), *part], whole)
    if known.piece(whole) is not None:
        return False
    return unify([known.piece_of(own[0], low, low + sizes[1])], part)


def padded(known: Structure, op: Operation) -> Link:
    """The link of a pad."""
    part, whole = op.operands[0], op.results[0]
    link = moving([mlir.shape(part), ()], [mlir.shape(whole)])
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    for dim, (low, high, within) in enumerate(zip(*(integers(op, n) for n in names), strict=True)):
        mine, its = known.of(part)[dim], known.of(whole)[dim]
        if not (low or high or within):
            aligned = unify(mine, its)
        elif size_of(mine) == 1 and low >= 0 and high >= 0:
            link.places[dim] = low
            aligned = True
        else:
            inside = low >= 0 and high >= 0 and not within
            aligned = inside and _is_put_back(known, mine, its, low)
        if not aligned:
            link.operands[0][dim] = link.results[0][dim] = None
    return link


def _is_put_back(known: Structure, part: list[Digit], whole: list[Digit], low: int) -> bool:
    """Whether a part lies in its place, or as one of equal parts."""
    piece, sizes = known.piece(part), (size_of(part), size_of(whole))
    if piece is not None:
        in_place = piece.low == low and piece.of.root.size == sizes[1]
        return in_place and unify([piece.of], whole)
    equal = sizes[0] > 1 and sizes[1] % sizes[0] == 0 and low % sizes[0] == 0
    return equal and unify([Digit(sizes[1] // sizes[0]), *part], whole)


def concatenated(known: Structure, op: Operation) -> Link:
    """The link of a concatenation."""
    along = integer(op, "dimension")
    shapes = [mlir.shape(v) for v in op.operands]
    link = moving(shapes, [mlir.shape(op.results[0])])
    filled = [v for v in op.operands if 0 not in mlir.shape(v)]
    for dim, its in enumerate(known.of(op.results[0])):
        if dim != along:
            for value in filled:
                align(link, known.of(value)[dim], its)
        elif not _is_joined(known, [known.of(v)[dim] for v in filled], its):
            for row in (*link.operands, *link.results):
                row[dim] = None
    return link


def _is_joined(known: Structure, parts: list[list[Digit]], whole: list[Digit]) -> bool:
    """Whether parts are all of a dimension, follow each other in it, or are views of one size."""
    if len(parts) == 1:
        return unify(parts[0], whole)
    pieces = [p for p in map(known.piece, parts) if p is not None]
    if len(pieces) == len(parts):
        first, last = pieces[0], pieces[-1]
        if not all(a.high == b.low and a.of.root is b.of.root for a, b in pairwise(pieces)):
            return False
        is_all = (first.low, last.high) == (0, first.of.root.size)
        own = first.of if is_all else known.piece_of(first.of, first.low, last.high)
        return unify([own], whole)
    sizes = {size_of(part) for part in parts}
    if len(sizes) > 1 or sizes == {1}:
        return False
    alike = [unify(parts[0], part) for part in parts[1:]]
    return all(alike) and unify([Digit(len(parts)), *parts[0]], whole)


def size_of(digits: list[Digit]) -> int:
    """How many places digits count."""
    size = 1
    for digit in digits:
        size *= digit.size
    return size
