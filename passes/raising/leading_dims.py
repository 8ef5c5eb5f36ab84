"""Leading dimensions: given an op and a number of dimensions, the same op with these in front.

    %y = transpose %x, dims = [1, 0] : 2x3 -> 3x2
        =>  %y = transpose %x, dims = [0, 2, 1] : 8x2x3 -> 8x3x2

The op is changed in place, so that it keeps its source line.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.ir.traits import Kind, ops_of

Sizes = tuple[int, ...]
Extend = Callable[[ir.Attribute, Sizes], ir.Attribute]


def _integers(attribute: ir.Attribute) -> list[int]:
    return list(ir.DenseI64ArrayAttr(attribute))


def _moved(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    """Dimensions by number."""
    return ir.DenseI64ArrayAttr.get([dim + len(sizes) for dim in _integers(attribute)])


def _kept(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    """For each dimension of one side, its number on the other."""
    return ir.DenseI64ArrayAttr.get(
        [*range(len(sizes)), *(dim + len(sizes) for dim in _integers(attribute))]
    )


def _zeros(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([0] * len(sizes) + _integers(attribute))


def _ones(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([1] * len(sizes) + _integers(attribute))


def _whole(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([*sizes, *_integers(attribute)])


def _number(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    """One dimension, counted from the front or, below zero, from the back."""
    dim = ir.IntegerAttr(attribute)
    return ir.IntegerAttr.get(dim.type, dim.value + len(sizes) * (dim.value >= 0))


def _unpadded(attribute: ir.Attribute, sizes: Sizes) -> ir.Attribute:
    rows = np.array(ir.DenseIntElementsAttr(attribute)).reshape(-1, 2)
    return cast(Any, ir.DenseElementsAttr).get(
        np.concatenate([np.zeros((len(sizes), 2), np.int64), rows])
    )


WINDOW: dict[str, Extend] = {
    **dict.fromkeys(
        ("window_dimensions", "window_strides", "base_dilations", "window_dilations"), _ones
    ),
    "padding": _unpadded,
}
# How the attributes that speak of dimensions change; all others stay.
ATTRIBUTES: dict[str, dict[str, Extend]] = {
    **{name: {} for name in ops_of(Kind.ELEMENTWISE)},
    **{f"stablehlo.{name}": {} for name in ("reshape", "cholesky", "triangular_solve", "fft")},
    "stablehlo.transpose": {"permutation": _kept},
    "stablehlo.broadcast_in_dim": {"broadcast_dimensions": _kept},
    "stablehlo.slice": {"start_indices": _zeros, "limit_indices": _whole, "strides": _ones},
    "stablehlo.pad": dict.fromkeys(
        ("edge_padding_low", "edge_padding_high", "interior_padding"), _zeros
    ),
    "stablehlo.concatenate": {"dimension": _number},
    "stablehlo.reverse": {"dimensions": _moved},
    "stablehlo.sort": {"dimension": _number},
    "stablehlo.reduce": {"dimensions": _moved},
    "stablehlo.reduce_window": WINDOW,
    "stablehlo.select_and_scatter": WINDOW,
}


def has_leading_dims(op: Operation, extended: Callable[[Value], bool]) -> bool:
    """Whether the op has an equal with leading dimensions, on all but its initial values."""
    return op.name in ATTRIBUTES and not any(map(extended, mlir.operands(op)[_array_count(op) :]))


def add_leading_dims(op: Operation, sizes: Sizes) -> None:
    """Change attributes and results. The operands have the dimensions already, but for initial
    values.
    """
    with mlir.context(), op.location:
        for name, extend in ATTRIBUTES[op.name].items():
            if name in op.attributes:
                op.attributes[name] = extend(op.attributes[name], sizes)
    for result in op.results:
        set_shape(result, (*sizes, *mlir.shape(result)))


def array_operands(op: Operation) -> range:
    """Which operands have leading dimensions if results do: all but initial and padding values."""
    return range(_array_count(op))


def _array_count(op: Operation) -> int:
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        return len(op.operands) // 2
    return len(op.operands) - (op.name in ("stablehlo.pad", "stablehlo.select_and_scatter"))


def set_shape(value: Any, shape: Sizes) -> None:
    """Make a value one of another shape, in place."""
    with mlir.context(), ir.Location.unknown():
        value.set_type(ir.RankedTensorType.get(shape, cast(ir.Type, mlir.element_type(value))))
