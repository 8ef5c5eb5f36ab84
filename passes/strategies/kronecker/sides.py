"""Sides: given a path, the axes of the gradient that go with each factor of its site.

    dot_general %h[t, d], %l[t, f]   ; transposed to [f, d]    =>  left (0,) is l, right (1,) is h

What is stacked, a batch dimension of the site, lies in front of both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import convolution_numbers, scatter_numbers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path
from hlo_surgery.passes.terms.contracted_dims import contracted

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Sides:
    """Axes of a gradient: `stacked`, then `left`, then `right`; a vector has no left ones.

    `diagonal`: which side has one element at each position, of those that are looked up.
    `swapped`: whether left goes with the site's second factor. `each_row`: of a parameter that is
    added as it is every row is looked up, once at each position.
    """

    stacked: Dims
    left: Dims
    right: Dims
    diagonal: str
    swapped: bool
    each_row: bool = False


def common_sides(paths: Sequence[Path]) -> list[Sides] | None:
    """The sides of each path, all of one kind; None where they are not, or there are none."""
    found = [sides_of(path) for path in paths]
    known = [each for each in found if each is not None]
    kinds = {_kind(path, each) for path, each in zip(paths, found, strict=True) if each is not None}
    return known if len(known) == len(found) and len(kinds) == 1 else None


def _kind(path: Path, sides: Sides) -> tuple[object, ...]:
    """What paths must share to be added up: used as w and as w', a weight has its inputs on the
    left of one path and on the right of the other, where scales of the loss do not lie.
    """
    is_product = path.site.op.name == "stablehlo.dot_general"
    return (*_all(sides), sides.diagonal, sides.swapped, is_product)


def sides_of(path: Path) -> Sides | None:
    """The sides of one path; None where no axis parts them."""
    if path.order is None:
        return None
    op = path.site.op
    stacked, first, second = (_axes(path.order, dims) for dims in _site_dims(op))
    left, right = sorted((first, second), key=lambda axes: _wide(path, axes) or axes)
    if max(_wide(path, left), default=-1) > min(_wide(path, right), default=math.inf):
        return None
    if max(stacked, default=-1) > min((*left, *right), default=len(path.order)):
        return None
    if op.name == "stablehlo.reduce" and len(_wide(path, right)) > 1:
        return Sides(stacked, right[:-1], right[-1:], "left", False, True)
    swapped = left != first
    looked_up = op.name == "stablehlo.scatter"
    diagonal = ("right" if swapped else "left") if looked_up else ""
    return Sides(stacked, left, right, diagonal, swapped)


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
