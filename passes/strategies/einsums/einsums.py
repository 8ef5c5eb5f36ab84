"""Einsums: given a slice whose tail only moves and scales it, its sites as sums of outer products.

    lhs[g, t, d], rhs[g, t, f] -> [g, d, f], of each example alone

    dot_general %x[g, t, d], %l[g, t, f]    =>    x and l
    reduce %l[t, f]                         =>    ones and l
    scatter %u[t, f] at %i[t]               =>    rows i[t], one-hot, and u
    convolution %x, %l[t, f]                =>    patches of x at t, and l

What comes behind a site permutes its dimensions and multiplies by numbers. Norms of such a
gradient, inner products, projections and Kronecker factors need the two factors alone, and never
the gradient itself.

Sides: given an einsum, the axes of the gradient that go with each of its factors.

    dot_general %h[t, d], %l[t, f]   ; transposed to [f, d]    =>  left (0,) is l, right (1,) is h

What is stacked, a batch dimension of the site, lies in front of both. Where axes of one factor
lie on both sides of the other's, the first ones do too: each head of a weight [heads, D, F], whose
inputs are [D], is a layer of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hlo_surgery.passes.dataflow.ancestors import copied_from, sums_from_zero
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.emit.splice import HOISTED_STACK, scope_of
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_table
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import (
    added_results,
    convolution_numbers,
    integer,
    integers,
    pads,
    scatter_numbers,
)
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.terms.epilogue import Does, reading_of
from hlo_surgery.passes.terms.steps import Dims, GradientSlice, Held, Split, Step, contracted

ADDED = -1
GROUPS = ("feature_group_count", "batch_group_count")


@dataclass(frozen=True)
class Einsum:
    """One site, and how it lies in the output. `labels`: of each of the site's dimensions, "g" if
    both factors have it, "d" if the first one has it alone, "f" the second.

    `order[i]`: the site's dimension that is the output's dimension i, or ADDED, of size 1; None
    where they are regrouped. Dimensions of the site that it lacks have size 1, too. `pad`: what
    puts that among zeros at the end. `scales`: values of one number each, by which the site is
    multiplied (or divided: then True), after `negated`.
    """

    site: Step
    labels: str
    order: Dims | None
    pad: Operation | None = None
    scales: tuple[tuple[Value, bool], ...] = ()
    negated: bool = False

    @property
    def kind(self) -> str:
        """The name of the site's op, without its dialect."""
        return self.site.op.name.removeprefix("stablehlo.")

    @property
    def shape(self) -> Sequence[int]:
        """What the site makes."""
        return mlir.shape(self.site.op.result)

    @property
    def sizes(self) -> list[int]:
        """The shape as it is ordered, in front of a pad."""
        return [1 if d == ADDED else self.shape[d] for d in self.order or ()]

    @property
    def elements(self) -> int:
        """Of both factors at one position: of a scatter's first one a row number."""
        pairs = list(zip(self.shape, self.labels, strict=True))
        first, second = (math.prod(n for n, own in pairs if own in ("g", x)) for x in "df")
        return second + (1 if self.kind == "scatter" else first)

    def positions(self, size: int) -> int:
        """How many products are summed for each of `size` examples."""
        *_, last = contracted(self.site.op).values()
        return last.positions // size

    def dims(self, label: str) -> list[int]:
        """The site's dimensions of this label in the order in which the output has them; what it
        lacks comes last.
        """
        own = [d for d, each in enumerate(self.labels) if each == label]
        kept = [d for d in self.order or () if d in own]
        return [*kept, *(d for d in own if d not in kept)]

    def axes(self, label: str) -> Dims:
        """The output's dimensions that are of this label."""
        own = self.dims(label)
        return tuple(axis for axis, dim in enumerate(self.order or ()) if dim in own)

    def wide(self, axes: Sequence[int]) -> Dims:
        """Those of the output's dimensions that have more than one element."""
        return tuple(axis for axis in axes if self.sizes[axis] > 1)

    @property
    def halves(self) -> tuple[Dims, Dims] | None:
        """The output's wide dimensions that each factor goes over; None if it has others, if they
        are regrouped, and of patches.
        """
        others = self.pad is not None or self.order is None or "g" in self.labels
        if others or self.kind == "convolution":
            return None
        return self.wide(self.axes("d")), self.wide(self.axes("f"))


def einsums_of(sliced: GradientSlice) -> list[Einsum]:
    """All einsums of which a real gradient is the sum; none where it is more."""
    found, unread = _read(sliced)
    output = found.get(sliced.value, [])
    is_real = not mlir.is_complex(sliced.value)
    return output if unread is None and is_real and _fit(output) else []


def first_unread(sliced: GradientSlice) -> Step | None:
    """The first step that does more than einsums say."""
    return _read(sliced)[1]


def _read(sliced: GradientSlice) -> tuple[dict[Value, list[Einsum]], Step | None]:
    """The einsums that each step makes, up to one that does more."""
    known: dict[Value, list[Einsum]] = {}
    for step in sliced.steps:
        found = _begun(step) if step.is_site else _behind(step, known)
        if found is None:
            return known, step
        known[step.op.results[0]] = found
    return known, None


def _fit(einsums: Sequence[Einsum]) -> bool:
    """Whether all factors go over the same output dimensions, so that they pair."""
    halves = [e.halves for e in einsums]
    pairs = {frozenset(h) for h in halves if h is not None}
    return len(einsums) == 1 or (None not in halves and len(pairs) == 1)


def _begun(site: Step) -> list[Einsum] | None:
    """A site, if one example's share is a sum over positions of outer products, on top of zeros."""
    op = site.op
    whole = all(axis is None or isinstance(axis, PerExample) for _, axis in site.inputs)
    alone = whole and sums_from_zero(op) and raise_op(op) is not None
    labels = _labels(op) if alone else None
    return None if labels is None else [Einsum(site, labels, tuple(range(len(labels))))]


def _labels(op: Operation) -> str | None:
    """None where what it sums are no outer products."""
    rank = range(len(mlir.shape(op.result)))
    match op.name:
        case "stablehlo.dot_general":
            left, right = contracted(op).values()
            return "g" * len(left.batch) + "d" * len(left.free) + "f" * len(right.free)
        case "stablehlo.reduce" if all(added_results(op)):
            second = [*rank]
        case "stablehlo.scatter" if _adds_whole_rows(op):
            rows = list(scatter_numbers(op).scattered_dims_to_operand_dims)
            second = [d for d in rank if d not in rows]
        case "stablehlo.convolution" if {integer(op, name) for name in GROUPS} == {1}:
            second = [convolution_numbers(op).output_feature_dimension]
        case _:
            return None
    return "".join("f" if d in second else "d" for d in rank)


def _adds_whole_rows(op: Operation) -> bool:
    """Whether a scatter adds each update, all of it, to one row, which the indices say."""
    numbers, shape = scatter_numbers(op), mlir.shape(op.operands[0])
    scattered = sorted(numbers.scattered_dims_to_operand_dims)
    window = [size for d, size in enumerate(shape) if d not in scattered]
    plain = not list(numbers.input_batching_dims) and scattered == [*numbers.inserted_window_dims]
    return bool(scattered) and plain and contracted(op)[2].elements == math.prod(window)


def _behind(step: Step, known: dict[Value, list[Einsum]]) -> list[Einsum] | None:
    """Those behind one op of the tail; None if it does more than move, scale and add them."""
    link = reading_of(step, known)
    if link is None or any(isinstance(axis, Held | Split) for _, axis in step.inputs):
        return None
    sums = [e for i in link.sums for e in known[step.inputs[i][0]]]
    others = [value for i, (value, _) in enumerate(step.inputs) if i not in link.sums]
    match link.does:
        case Does.ADDS | Does.PASSES:
            return sums
        case Does.NEGATES:
            return [replace(e, negated=not e.negated) for e in sums]
        case Does.SCALES if _is_one_number(others[0]):
            return [replace(e, scales=(*e.scales, (others[0], link.divides))) for e in sums]
        case Does.MOVES | Does.PADS if link.keeps_elements:
            return [_turned(e, step.op) for e in sums]
        case _:
            return None


def _is_one_number(value: Value) -> bool:
    """Whether all elements of a value are the same, as far as its making shows."""
    source = copied_from(value)
    constant = mlir.made_by(source, "stablehlo.constant")
    is_splat_constant = constant is not None and not is_table(constant)
    return is_splat_constant or math.prod(mlir.shape(source)) == 1


def _turned(e: Einsum, op: Operation) -> Einsum:
    """Behind an op of which each element is kept."""
    is_placed = e.order is not None and e.pad is None
    if is_placed and op.name == "stablehlo.pad":
        return replace(e, pad=op)
    source = _source_dims(op) if is_placed else None
    if e.order is None or source is None:
        return replace(e, order=None, pad=None)
    return replace(e, order=tuple(d if d == ADDED else e.order[d] for d in source))


def _source_dims(op: Operation) -> Dims | None:
    """The operand's dimension that is each of the result's, or ADDED; None if an op of which each
    element is kept does more than turn dimensions, and add and drop some of size 1.
    """
    if op.name == "stablehlo.transpose":
        return integers(op, "permutation")
    if op.name == "stablehlo.broadcast_in_dim":
        places = integers(op, "broadcast_dimensions")
        after = range(len(mlir.shape(op.result)))
        return tuple(places.index(d) if d in places else ADDED for d in after)
    if op.name not in ("stablehlo.reduce", "stablehlo.reshape"):
        return None
    before, after = (mlir.shape(v) for v in (op.operands[0], op.result))
    sources: list[int] = []
    left = list(range(len(before)))
    for size in after:
        while left and before[left[0]] == 1 != size:
            left.pop(0)
        if left and before[left[0]] == size:
            sources.append(left.pop(0))
        elif size == 1:
            sources.append(ADDED)
        else:
            return None
    return tuple(sources)


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
    amounts = pads(pad)
    padded = [axis for axis, own in enumerate(amounts) if any(own)]
    between = any(own[2] for own in amounts)
    if sides is None or not sides.each_row or between or padded != [*sides.left]:
        return None
    return replace(sides, unused=amounts[padded[0]][0])
