"""Ghost paths: given a slice whose tail only moves it, its sites as sums of outer products.

    %h = dot_general %x, %l over b, t ; %t = transpose %h ; return %t
        =>  one path: x times l, moved by [1, 0]

The norm of such a gradient, and inner products of two, need the factors alone and never the
gradient itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers, scatter_numbers
from hlo_surgery.passes.ir.constants import copied_from, is_splat
from hlo_surgery.passes.ir.linearity import added_results, initial_operands
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.terms.contracted_dims import Dims, contracted
from hlo_surgery.passes.terms.epilogue import Does, reading_of
from hlo_surgery.passes.terms.steps import GradientSlice, Held, Input, Split, Step

ADDED = -1


@dataclass(frozen=True)
class Path:
    """One site, and what becomes of it on the way to the output.

    `order[i]`: the site's dimension that is the output's dimension i, or ADDED, of size 1; None
    where they are regrouped. Dimensions of the site that it lacks have size 1, too. `scales`:
    inputs of one number each, by which the site is multiplied (or divided: then True), after
    `negated`. `part_of`: of a site that is put among zeros, and not moved behind, `order` in front
    of that.
    """

    site: Step
    order: Dims | None
    scales: tuple[tuple[Input, bool], ...] = ()
    negated: bool = False
    part_of: tuple[Dims, Operation] | None = None


def ghost_paths(sliced: GradientSlice) -> list[Path] | None:
    """The paths of a slice; None where ghost norms do not apply. They are for real gradients."""
    if mlir.is_complex(sliced.value):
        return None
    paths, unread = _read(sliced)
    output = paths.get(sliced.value)
    return output if unread is None and output and _fit(output) else None


def first_unread(sliced: GradientSlice) -> Step | None:
    """The first step that no path goes through."""
    return _read(sliced)[1]


def _read(sliced: GradientSlice) -> tuple[dict[Value, list[Path]], Step | None]:
    """The paths to what each step makes, up to one that no path goes through."""
    paths: dict[Value, list[Path]] = {}
    for step in sliced.steps:
        found = _begun(step) if step.is_site else _moved(step, paths)
        if found is None:
            return paths, step
        paths[step.op.results[0]] = found
    return paths, None


def _begun(site: Step) -> list[Path] | None:
    """The path that begins at a site."""
    rank = len(mlir.shape(site.op.results[0]))
    return [Path(site, tuple(range(rank)))] if _is_outer_product(site) else None


def _is_outer_product(site: Step) -> bool:
    """Whether one example's share is a sum over positions of outer products, on top of nothing."""
    op = site.op
    whole = all(axis is None or isinstance(axis, PerExample) for _, axis in site.inputs)
    alone = len(op.results) == 1 and all(is_splat(op.operands[i], 0) for i in initial_operands(op))
    if not (whole and alone and raise_op(op) is not None):
        return False
    if op.name == "stablehlo.reduce":
        return all(added_results(op))
    if op.name == "stablehlo.convolution":
        return integer(op, "feature_group_count") == integer(op, "batch_group_count") == 1
    return op.name == "stablehlo.dot_general" or (
        op.name == "stablehlo.scatter" and _adds_whole_rows(op)
    )


def _adds_whole_rows(op: Operation) -> bool:
    """Whether a scatter adds each update, all of it, to one row, which the indices say."""
    numbers = scatter_numbers(op)
    scattered = list(numbers.scattered_dims_to_operand_dims)
    shape, updates = mlir.shape(op.operands[0]), mlir.shape(op.operands[2])
    window = [d for d in range(len(shape)) if d not in scattered]
    sizes = [updates[d] for d in numbers.update_window_dims]
    plain = not list(numbers.input_batching_dims) and sorted(
        numbers.inserted_window_dims
    ) == sorted(scattered)
    return bool(scattered) and plain and sizes == [shape[d] for d in window]


def _moved(step: Step, paths: dict[Value, list[Path]]) -> list[Path] | None:
    """The paths behind one op of the tail; None if it does more than move, scale and add them."""
    link = reading_of(step, paths)
    if link is None or any(isinstance(axis, Held | Split) for _, axis in step.inputs):
        return None
    known = [path for i in link.sums for path in paths[step.inputs[i][0]]]
    others = [key for i, key in enumerate(step.inputs) if i not in link.sums]
    match link.does:
        case Does.ADDS | Does.PASSES:
            return known
        case Does.NEGATES:
            return [replace(p, negated=not p.negated) for p in known]
        case Does.SCALES if is_one_number(others[0][0]):
            return [replace(p, scales=(*p.scales, (others[0], link.divides))) for p in known]
        case Does.MOVES | Does.PADS if link.keeps_elements:
            return [_turned(p, step.op) for p in known]
        case _:
            return None


def _turned(path: Path, op: Operation) -> Path:
    """A path behind an op of which each element is kept."""
    padded = (path.order, op) if op.name == "stablehlo.pad" and path.order is not None else None
    return replace(path, order=_taken(path.order, _source_dims(op)), part_of=padded)


def _source_dims(op: Operation) -> Dims | None:
    """The operand's dimension that is each of the result's, or ADDED; None if an op of which each
    element is kept does more than turn dimensions, and add and drop some of size 1.
    """
    before, after = (mlir.shape(v) for v in (op.operands[0], op.results[0]))
    match op.name:
        case "stablehlo.transpose":
            return integers(op, "permutation")
        case "stablehlo.broadcast_in_dim":
            places = integers(op, "broadcast_dimensions")
            return tuple(places.index(d) if d in places else ADDED for d in range(len(after)))
        case "stablehlo.reduce":
            return tuple(d for d in range(len(before)) if d not in integers(op, "dimensions"))
        case "stablehlo.reshape":
            return _reshaped(before, after)
        case _:
            return None


def _reshaped(before: Sequence[int], after: Sequence[int]) -> Dims | None:
    """The same of a reshape."""
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


def _taken(order: Dims | None, source: Dims | None) -> Dims | None:
    """The site's dimensions behind one more op, in the order of its result's."""
    if order is None or source is None:
        return None
    return tuple(ADDED if d == ADDED else order[d] for d in source)


def is_one_number(value: Value) -> bool:
    """Whether all elements of a value are the same, as far as its making shows."""
    source = copied_from(value)
    op = mlir.defining_operation(source)
    if math.prod(mlir.shape(source)) == 1:
        return True
    return (
        op is not None
        and op.name == "stablehlo.constant"
        and bool(cast(Any, op.attributes["value"]).is_splat)
    )


def _fit(paths: list[Path]) -> bool:
    """Whether all paths' factors go over the same output dimensions, so that they pair."""
    if len(paths) == 1:
        return True
    halves = [factor_dims(p) for p in paths]
    return all(h is not None and frozenset(h) == frozenset(halves[0] or ()) for h in halves)


def factor_dims(path: Path) -> tuple[frozenset[int], frozenset[int]] | None:
    """The output dimensions that each factor goes over; None if regrouped or batched."""
    op, factors = path.site.op, list(contracted(path.site.op).values())
    if path.order is None or op.name == "stablehlo.convolution" or factors[0].batch:
        return None
    if op.name == "stablehlo.scatter":
        rows = set(scatter_numbers(op).scattered_dims_to_operand_dims)
    else:
        rows = {*range(len(factors[0].free) if len(factors) == 2 else 0)}
    first = frozenset(i for i, d in enumerate(path.order) if d in rows)
    return first, frozenset(range(len(path.order))) - first


def is_single_product(path: Path, size: int) -> bool:
    """Whether an example's share is one outer product of operands that hold nothing else along its
    dimension.
    """
    op = path.site.op
    dense = op.name in ("stablehlo.dot_general", "stablehlo.reduce")
    return dense and not contracted(op)[0].batch and path_counts(path, size)[0] == 1


def may_cancel(paths: Sequence[Path], size: int) -> bool:
    """Whether an example has more than one position, whose shares may cancel."""
    return sum(path_counts(path, size)[0] for path in paths) > 1


def is_lighter(paths: Sequence[Path], gradient: Value, size: int) -> bool:
    """Whether pairs of positions take no more memory than an example's gradient does."""
    positions = sum(path_counts(path, size)[0] for path in paths)
    return positions**2 <= math.prod(mlir.shape(gradient))


def path_counts(path: Path, size: int) -> tuple[int, int]:
    """One example's positions, and the elements of both factors at one."""
    op = path.site.op
    *others, last = contracted(op).values()
    scattered = op.name == "stablehlo.scatter"
    product = last.elements if scattered else math.prod(mlir.shape(op.results[0]))
    first = others[0].elements if others else product // max(last.elements, 1)
    return last.positions // size, first + last.elements
