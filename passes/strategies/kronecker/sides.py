"""Sides: given a path, the axes of the gradient that go with each factor of its site.

    dot_general %h[t, d], %l[t, f]   ; transposed to [f, d]    =>  left (0,) is l, right (1,) is h

What is stacked, a batch dimension of the site, lies in front of both. Where axes of one factor
lie on both sides of the other's, the first ones do too: each head of a weight [heads, D, F], whose
inputs are [D], is a layer of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_surgery.passes.emit.scopes import HOISTED_STACK, scope_of
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import convolution_numbers, integers, scatter_numbers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path
from hlo_surgery.passes.terms.contracted_dims import contracted

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Sides:
    """Axes of a gradient: `stacked`, then `left`, then `right`; a vector has no left ones.

    `diagonal`: which side has one element at each position, of those that are looked up.
    `swapped`: whether left goes with the site's second factor. `each_row`: of a parameter that is
    added as it is every row is looked up, once at each position, or those behind the first
    `unused`. `apart`: which side has what is stacked among its elements, in front of its own; ""
    where it is a batch dimension.
    """

    stacked: Dims
    left: Dims
    right: Dims
    diagonal: str
    swapped: bool
    each_row: bool = False
    unused: int = 0
    apart: str = ""


def common_sides(paths: Sequence[Path]) -> list[Sides] | None:
    """The sides of each path, all of one kind; None where they are not, or there are none."""
    found = [sides_of(path) for path in paths]
    known = [each for each in found if each is not None]
    alike = len(known) == len(found) and unlike_the_first(paths) is None
    return known if known and alike else None


def unlike_the_first(paths: Sequence[Path]) -> Path | None:
    """A path that has sides, but not of the kind of the first one's."""
    found = [(path, sides) for path in paths if (sides := sides_of(path)) is not None]
    kinds = [_kind(path, sides) for path, sides in found]
    pairs = zip(found, kinds, strict=True)
    return next((path for (path, _), kind in pairs if kind != kinds[0]), None)


def _kind(path: Path, sides: Sides) -> tuple[object, ...]:
    """What paths must share to be added up: used as w and as w', a weight has its inputs on the
    left of one path and on the right of the other, where scales of the loss do not lie.
    """
    is_product = path.site.op.name == "stablehlo.dot_general"
    return (*_all(sides), sides.diagonal, sides.swapped, sides.apart, is_product)


def sides_of(path: Path) -> Sides | None:
    """The sides of one path; None where no axis parts them."""
    if path.order is None:
        return _of_part(path)
    if scope_of(path.site.op) == HOISTED_STACK:
        return _of_stack(path)
    return _of_site(path)


def _of_stack(path: Path) -> Sides | None:
    """Of the contractions of all steps of a loop at once, the steps in front: as of each step's,
    where what is stacked can be told from what a step sums; else None.
    """
    op, order = path.site.op, path.order or ()
    if op.name != "stablehlo.reduce":
        sides = _of_site(path)
        return sides if sides and sides.stacked[:1] == (0,) else None
    own = tuple(range(1, len(order)))
    is_vector = len(_wide(path, own)) < 2 and tuple(order) == (0, *own)
    return Sides((0,), (), own, "", False, apart="right") if is_vector else None


def _of_site(path: Path) -> Sides | None:
    """The sides of a path whose site is all there is to its gradient."""
    op = path.site.op
    assert path.order is not None
    stacked, first, second = (_axes(path.order, dims) for dims in _site_dims(op))
    left, right = sorted((first, second), key=lambda axes: _wide(path, axes) or axes)
    if not _in_order(path, left, right):
        return None if stacked else _apart(path, first, second)
    if max(stacked, default=-1) > min((*left, *right), default=len(path.order)):
        return None
    if op.name == "stablehlo.reduce" and len(_wide(path, right)) > 1:
        return Sides(stacked, right[:-1], right[-1:], "left", False, True)
    swapped = left != first
    looked_up = op.name == "stablehlo.scatter"
    diagonal = ("right" if swapped else "left") if looked_up else ""
    return Sides(stacked, left, right, diagonal, swapped)


def _of_part(path: Path) -> Sides | None:
    """Of some rows of a parameter that are added as they are, the others being unused."""
    if path.part_of is None:
        return None
    order, pad = path.part_of
    sides = sides_of(replace(path, order=order, part_of=None))
    low, high = (integers(pad, f"edge_padding_{end}") for end in ("low", "high"))
    whole = [low[axis] == high[axis] == 0 for axis in range(len(order))]
    if (
        sides is None
        or not sides.each_row
        or len(sides.left) != 1
        or any(not whole[axis] for axis in (*sides.stacked, *sides.right))
    ):
        return None
    apart = any(integers(pad, "interior_padding"))
    return None if apart else replace(sides, unused=low[sides.left[0]])


def _in_order(path: Path, left: Dims, right: Dims) -> bool:
    return max(_wide(path, left), default=-1) <= min(_wide(path, right), default=math.inf)


def _apart(path: Path, first: Dims, second: Dims) -> Sides | None:
    """The sides of a product where axes of one factor lie on both sides of the other's: those in
    front are stacked.
    """
    outer, inner = sorted((first, second), key=lambda axes: min(_wide(path, axes)))
    begin = min(_wide(path, inner))
    stacked = tuple(axis for axis in outer if axis < begin)
    behind = tuple(axis for axis in outer if axis > begin)
    if path.site.op.name != "stablehlo.dot_general" or not _in_order(path, inner, behind):
        return None
    return Sides(stacked, inner, behind, "", inner != first, apart="right")


def _axes(order: Sequence[int], dims: Sequence[int]) -> Dims:
    """The output's axes that are these dimensions of the site."""
    return tuple(axis for axis, dim in enumerate(order) if dim in dims)


def _site_dims(op: Operation) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The dimensions of a site's result: stacked, those of its first factor, and of its second."""
    every = range(len(mlir.shape(op.results[0])))
    match op.name:
        case "stablehlo.dot_general":
            left, _ = contracted(op).values()
            first = len(left.batch), len(left.batch) + len(left.free)
            return every[: first[0]], every[first[0] : first[1]], every[first[1] :]
        case "stablehlo.scatter":
            own = list(scatter_numbers(op).scattered_dims_to_operand_dims)
        case "stablehlo.convolution":
            feature = convolution_numbers(op).output_feature_dimension
            own = [dim for dim in every if dim != feature]
        case _:
            own = list[int]()
    return (), own, [dim for dim in every if dim not in own]


def _wide(path: Path, axes: Dims) -> Dims:
    """Those of the axes that have more than one element."""
    shape, order = mlir.shape(path.site.op.results[0]), path.order or ()
    return tuple(axis for axis in axes if shape[order[axis]] > 1)


def sizes_of(sides: Sides, shape: Sequence[int]) -> tuple[list[int], int, int]:
    """Of what is stacked, and the elements of left and of right."""
    stacked, left, right = ([shape[axis] for axis in axes] for axes in _all(sides))
    return stacked, math.prod(left), math.prod(right)


def _all(sides: Sides) -> tuple[Dims, Dims, Dims]:
    return sides.stacked, sides.left, sides.right
