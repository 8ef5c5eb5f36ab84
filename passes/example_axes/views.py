"""Views: batches laid one behind the other, as augmented views of each example in one network.

    %z = concatenate %x, %y, dim = 0
        both PerExample(dim 0)    =>  %z: PerExample(dim 0, before = 2)

Such a dimension is [views, B]; whole views may be sliced out of it and padded, since no example
leaves its place.
"""

from hlo_surgery.passes.example_axes.alignment.uniform import is_uniform
from hlo_surgery.passes.example_axes.lattice import Class, PerExample, Shared
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation, Value


def view_axis(
    op: Operation, classes: list[Class], axis: PerExample, size: int
) -> PerExample | None:
    """The result's example axis, if the op moves whole views along the dimension of views."""
    match op.name:
        case "stablehlo.concatenate" if integer(op, "dimension") == axis.dim:
            return _concatenated(op, classes, axis, size)
        case "stablehlo.slice" if integers(op, "strides")[axis.dim] == 1:
            start, limit = (
                integers(op, name)[axis.dim] for name in ("start_indices", "limit_indices")
            )
            return _views(axis, size, -start, limit)
        case "stablehlo.pad" if (
            classes[1] == Shared() and not integers(op, "interior_padding")[axis.dim]
        ):
            low, high = (
                integers(op, name)[axis.dim] for name in ("edge_padding_low", "edge_padding_high")
            )
            return _views(axis, size, low, high + axis.before * size * axis.after)
        case _:
            return None


def _concatenated(
    op: Operation, classes: list[Class], axis: PerExample, size: int
) -> PerExample | None:
    parts = [
        _view_of(value, known, axis, size)
        for value, known in zip(op.operands, classes, strict=True)
    ]
    views = [
        part.before for part in parts if part and (part.dim, part.after) == (axis.dim, axis.after)
    ]
    return PerExample(axis.dim, sum(views), axis.after) if len(views) == len(classes) else None


def _view_of(value: Value, known: Class, axis: PerExample, size: int) -> PerExample | None:
    """The views in one piece; rows alike at every example's place are a view that all share."""
    if isinstance(known, PerExample):
        return known
    rows, view = mlir.shape(value)[axis.dim], size * axis.after
    found = PerExample(axis.dim, rows // view, axis.after)
    return (
        found if known == Shared() and rows % view == 0 and is_uniform(value, found, size) else None
    )


def _views(axis: PerExample, size: int, low: int, end: int) -> PerExample | None:
    """The axis from `low` places before the start up to `end`, if that is whole views."""
    view = size * axis.after
    if low % view or end % view or low + end <= 0:
        return None
    return PerExample(axis.dim, (low + end) // view, axis.after)
