"""Leading dimensions: given an op and a number of dimensions, the same op with these in front.

    %y = transpose %x, dims = [1, 0] : 2x3 -> 3x2
        =>  %y = transpose %x, dims = [0, 2, 1] : 8x2x3 -> 8x3x2

The op is changed in place, so that it keeps its source line.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Shape, Value, ir
from hlo_surgery.passes.ir.traits import PADDINGS, Kind, ops_of

# An attribute's integers, and the sizes of the new dimensions: the integers with these in front.
Extend = Callable[[list[int], Shape], list[int]]


def _moved(dims: list[int], sizes: Shape) -> list[int]:
    """Dimensions by number; one below zero counts from the back."""
    return [dim + len(sizes) * (dim >= 0) for dim in dims]


def _kept(dims: list[int], sizes: Shape) -> list[int]:
    """For each dimension of one side, its number on the other."""
    return [*range(len(sizes)), *_moved(dims, sizes)]


def _zeros(numbers: list[int], sizes: Shape) -> list[int]:
    return [0] * len(sizes) + numbers


def _ones(numbers: list[int], sizes: Shape) -> list[int]:
    return [1] * len(sizes) + numbers


def _whole(numbers: list[int], sizes: Shape) -> list[int]:
    return [*sizes, *numbers]


WINDOW: dict[str, Extend] = {
    **dict.fromkeys(
        ("window_dimensions", "window_strides", "base_dilations", "window_dilations"), _ones
    ),
    "padding": lambda numbers, sizes: [0, 0] * len(sizes) + numbers,
}
# How the attributes that speak of dimensions change; all others stay.
ATTRIBUTES: dict[str, dict[str, Extend]] = {
    **{name: {} for name in ops_of(Kind.ELEMENTWISE)},
    **{f"stablehlo.{name}": {} for name in ("reshape", "cholesky", "triangular_solve", "fft")},
    "stablehlo.transpose": {"permutation": _kept},
    "stablehlo.broadcast_in_dim": {"broadcast_dimensions": _kept},
    "stablehlo.slice": {"start_indices": _zeros, "limit_indices": _whole, "strides": _ones},
    "stablehlo.pad": dict.fromkeys(PADDINGS, _zeros),
    "stablehlo.concatenate": {"dimension": _moved},
    "stablehlo.reverse": {"dimensions": _moved},
    "stablehlo.sort": {"dimension": _moved},
    "stablehlo.reduce": {"dimensions": _moved},
    "stablehlo.reduce_window": WINDOW,
    "stablehlo.select_and_scatter": WINDOW,
}


def has_leading_dims(op: Operation, extended: Callable[[Value], bool]) -> bool:
    """Whether the op has an equal with leading dimensions, on all but its initial values."""
    return op.name in ATTRIBUTES and not any(map(extended, mlir.operands(op)[_array_count(op) :]))


def add_leading_dims(op: Operation, sizes: Shape) -> None:
    """Change attributes and results. The operands have the dimensions already, but for initial
    values.
    """
    with mlir.context(), op.location:
        for name, extend in ATTRIBUTES[op.name].items():
            if name in op.attributes:
                op.attributes[name] = _extended(op.attributes[name], extend, sizes)
    for result in op.results:
        set_shape(result, (*sizes, *mlir.shape(result)))


def _extended(attribute: ir.Attribute, extend: Extend, sizes: Shape) -> ir.Attribute:
    """In the form that the attribute has: a single number, an array, or the two of a padding."""
    match attribute:
        case ir.IntegerAttr():
            return ir.IntegerAttr.get(attribute.type, extend([attribute.value], sizes)[0])
        case ir.DenseI64ArrayAttr():
            return ir.DenseI64ArrayAttr.get(extend([*attribute], sizes))
        case _:
            numbers = np.array(cast(Any, attribute)).ravel().tolist()
            pairs = np.array(extend(numbers, sizes), np.int64).reshape(-1, 2)
            return cast(Any, ir.DenseElementsAttr).get(pairs)


def array_operands(op: Operation) -> range:
    """Which operands have leading dimensions if results do: all but initial and padding values."""
    return range(_array_count(op))


def _array_count(op: Operation) -> int:
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        return len(op.operands) // 2
    return len(op.operands) - (op.name in ("stablehlo.pad", "stablehlo.select_and_scatter"))


def set_shape(value: Any, shape: Shape) -> None:
    """Make a value one of another shape, in place."""
    with mlir.context(), ir.Location.unknown():
        value.set_type(mlir.tensor_type(value, shape))
