"""Sides: given an einsum, the axes of the gradient that go with each of its factors.

    dot_general %h[t, d], %l[t, f]   ; transposed to [f, d]    =>  left (0,) is l, right (1,) is h

What is stacked, a batch dimension of the site, lies in front of both. Where axes of one factor
lie on both sides of the other's, the first ones do too: each head of a weight [heads, D, F], whose
inputs are [D], is a layer of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hlo_surgery.passes.emit.scopes import HOISTED_STACK, scope_of
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.terms.contracted_dims import Dims

PADDINGS = ("edge_padding_low", "edge_padding_high", "interior_padding")


@dataclass(frozen=True)
class Sides:
    """Axes of a gradient: `stacked`, then `left`, then `right`; a vector has no left ones. Equal
    ones can be added up: used as w and as w', a weight has its inputs on the left of one einsum and
    on the right of the other, where scales of the loss do not lie; and so has a vector that is
    added and multiplied by (`is_product`).

    `looked_up`: whether the first factor has one element at each position. `swapped`: whether left
    goes with the second factor. `each_row`: of a parameter that is added as it is every row is
    looked up, once at each position, or those behind the first `unused`. `apart`: right has what is
    stacked among its elements, in front of its own, and no batch dimension of the site is.
    """

    stacked: Dims
    left: Dims
    right: Dims
    is_product: bool = False
    looked_up: bool = False
    swapped: bool = False
    apart: bool = False
    each_row: bool = field(default=False, compare=False)
    unused: int = field(default=0, compare=False)

    @property
    def diagonal(self) -> int | None:
        """Which side is, left 0 and right 1."""
        return int(self.swapped) if self.looked_up else None

    def sizes(self, shape: Sequence[int]) -> tuple[list[int], int, int]:
        """Of what is stacked, and the elements of left and of right."""
        each = ([shape[axis] for axis in axes] for axes in (self.stacked, self.left, self.right))
        stacked, left, right = each
        return stacked, math.prod(left), math.prod(right)


def common_sides(einsums: Sequence[Einsum]) -> Sides | None:
    """The sides of all; None where they differ, or there are none."""
    found = {sides_of(e) for e in einsums}
    return found.pop() if len(found) == 1 else None


def sides_of(e: Einsum) -> Sides | None:
    """The sides of one einsum; None where no axis parts them."""
    if e.order is None:
        return None
    if e.pad is not None:
        return _of_part(e, e.pad)
    stacked, first, second = map(e.axes, "gdf")
    if scope_of(e.site.op) == HOISTED_STACK and stacked[:1] != (0,):
        return _of_stacked_vectors(e)
    left, right = sorted((first, second), key=lambda axes: e.wide(axes) or axes)
    is_product = e.kind == "dot_general"
    if not _in_order(e, left, right):
        return _apart(e, first, second) if is_product and not stacked else None
    if max(stacked, default=-1) > min((*left, *right), default=len(e.labels)):
        return None
    if e.kind == "reduce" and len(e.wide(right)) > 1:
        return Sides(stacked, right[:-1], right[-1:], looked_up=True, each_row=True)
    return Sides(stacked, left, right, is_product, e.kind == "scatter", left != first)


def _of_stacked_vectors(e: Einsum) -> Sides | None:
    """Of the sums of all steps of a loop at once, the steps in front, where what is stacked can be
    told from what a step sums.
    """
    every = tuple(range(len(e.labels)))
    is_vector = e.kind == "reduce" and e.order == every and len(e.wide(every[1:])) < 2
    return Sides((0,), (), every[1:], apart=True) if is_vector else None


def _apart(e: Einsum, first: Dims, second: Dims) -> Sides | None:
    """Of a product where axes of one factor lie on both sides of the other's: those in front are
    stacked.
    """
    outer, inner = sorted((first, second), key=lambda axes: min(e.wide(axes)))
    begin = min(e.wide(inner))
    stacked = tuple(axis for axis in outer if axis < begin)
    behind = tuple(axis for axis in outer if axis > begin)
    parted = Sides(stacked, inner, behind, True, swapped=inner != first, apart=True)
    return parted if _in_order(e, inner, behind) else None


def _in_order(e: Einsum, left: Dims, right: Dims) -> bool:
    return max(e.wide(left), default=-1) <= min(e.wide(right), default=math.inf)


def _of_part(e: Einsum, pad: Operation) -> Sides | None:
    """Of some rows of a parameter that are added as they are, the others being unused."""
    sides = sides_of(replace(e, pad=None))
    low, high, between = (integers(pad, name) for name in PADDINGS)
    padded = [axis for axis, amounts in enumerate(zip(low, high, strict=True)) if any(amounts)]
    if sides is None or not sides.each_row or any(between) or padded != [*sides.left]:
        return None
    return replace(sides, unused=low[sides.left[0]])
