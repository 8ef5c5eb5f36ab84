"""Integer division where constants are evaluated: by zero, no number, it would end the process.

    %q = divide %n, %d    =>    %s = select (%d == 0), 1, %d
                                %q = divide %n, %s              and %n, %d are looked at

What divides by zero, or the least integer by -1, differs from platform to platform.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, ir, stablehlo

DIVISIONS = frozenset(["stablehlo.divide", "stablehlo.remainder"])
# The bindings of this dialect come without types.
_stablehlo = cast(Any, stablehlo)


def is_integer_division(op: Operation) -> bool:
    """Whether the op divides integers."""
    return op.name in DIVISIONS and not mlir.is_inexact(op.results[0])


def guarded(op: Operation) -> list[Value]:
    """Keep an op from dividing by zero, in place. The dividend and the divisor of a division;
    nothing of another op.
    """
    if not is_integer_division(op):
        return []
    dividend, divisor = op.operands
    with ir.InsertionPoint(op):
        op.operands[1] = _without_zeros(divisor)
    return [dividend, divisor]


def _without_zeros(divisor: Value) -> Value:
    kind = cast(ir.RankedTensorType, divisor.type)
    zero, one = (_stablehlo.constant(_filled(kind, number)) for number in (0, 1))
    direction = _stablehlo.ComparisonDirectionAttr.get("EQ")
    return _stablehlo.select(_stablehlo.compare(divisor, zero, direction), one, divisor)


def _filled(kind: ir.RankedTensorType, number: int) -> ir.Attribute:
    return ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, number))


def is_defined(numbers: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether divisions of these have a result: dividends and divisors by turns."""
    return all(map(_divides, numbers[::2], numbers[1::2]))


def _divides(dividend: npt.NDArray[Any], divisor: npt.NDArray[Any]) -> bool:
    overflows = (
        np.any((dividend == np.iinfo(dividend.dtype).min) & (divisor == -1))
        if divisor.dtype.kind == "i"
        else 0
    )
    return bool((divisor != 0).all()) and not overflows
