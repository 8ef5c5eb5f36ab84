"""StableHLO attributes as Python values, with StableHLO's defaults for what is left out."""

import numpy as np
from jax import lax

from hlo_surgery.passes.ir.mlir import Operation, ir, stablehlo


def integer(op: Operation, name: str) -> int:
    """An integer attribute: `dimension = 1 : i64` -> 1."""
    return ir.IntegerAttr(op.attributes[name]).value


def integers(op: Operation, name: str) -> tuple[int, ...]:
    """An array of integers that the op must have: `array<i64: 1, 2>` -> (1, 2)."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[name]))


def ones_unless_given(op: Operation, name: str, length: int) -> tuple[int, ...]:
    """An optional array of integers that is all ones when left out: strides and dilations."""
    return integers(op, name) if name in op.attributes else (1,) * length


def padding(op: Operation, length: int) -> list[tuple[int, int]]:
    """A windowed op's optional `padding`, `dense<[[1, 0]]>` -> [(1, 0)]; zero if left out."""
    if "padding" not in op.attributes:
        return [(0, 0)] * length
    rows = np.array(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(length, 2)
    return [(int(low), int(high)) for low, high in rows]


def flags(op: Operation, name: str, length: int) -> tuple[bool, ...]:
    """An optional array of booleans; all false when left out."""
    return (
        tuple(ir.DenseBoolArrayAttr(op.attributes[name]))
        if name in op.attributes
        else (False,) * length
    )


def flag(op: Operation, name: str) -> bool:
    """An optional boolean attribute; false when left out."""
    return name in op.attributes and ir.BoolAttr(op.attributes[name]).value


def precision(op: Operation) -> tuple[lax.Precision, lax.Precision] | None:
    """The optional `precision_config`: one precision for each of the two operands."""
    if "precision_config" not in op.attributes:
        return None
    lhs, rhs = (
        stablehlo.PrecisionAttr(entry).value
        for entry in ir.ArrayAttr(op.attributes["precision_config"])
    )
    return lax.Precision[lhs], lax.Precision[rhs]


def dot_numbers(op: Operation) -> stablehlo.DotDimensionNumbers:
    """What a dot_general does with each operand's dimensions."""
    return stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])


def convolution_numbers(op: Operation) -> stablehlo.ConvDimensionNumbers:
    """What a convolution does with the dimensions of image, window and result."""
    return stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])


def gather_numbers(op: Operation) -> stablehlo.GatherDimensionNumbers:
    """The dimension numbers of a gather."""
    return stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])


def scatter_numbers(op: Operation) -> stablehlo.ScatterDimensionNumbers:
    """What a scatter does with the dimensions of updates and operand."""
    return stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
