"""Constants: the numbers of a constant, and what is a copy of one."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, func, ir, stablehlo
from hlo_surgery.passes.ir.traits import Kind, ops_of

COPIES = ops_of(Kind.COPIES)
# Of these element types the MLIR bindings hand over a constant's elements as a buffer.
_BUFFERS = frozenset(
    map(np.dtype, ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
)


def copied_from(value: Value) -> Value:
    """What a value copies, at other places or in another element type; itself if nothing."""
    op = mlir.defining_operation(value)
    while op is not None and op.name in COPIES:
        value = op.operands[0]
        op = mlir.defining_operation(value)
    return value


def is_splat(value: Value, number: float) -> bool:
    """Whether all elements are this number, as far as constants and their copies show."""
    op = mlir.defining_operation(copied_from(value))
    if op is None:
        return False
    return op.name == "stablehlo.constant" and _is_constant_splat(op, number)


def _is_constant_splat(op: Operation, number: float) -> bool:
    if isinstance(mlir.element_type(op.results[0]), ir.ComplexType):
        return bool((elements(op) == number).all())
    attribute = cast(Any, op.attributes["value"])
    return bool(attribute.is_splat) and attribute.get_splat_value().value == number


def is_table(op: Operation) -> bool:
    """Whether an op is a constant of numbers that are not all the same."""
    if op.name != "stablehlo.constant":
        return False
    if isinstance(mlir.element_type(op.results[0]), ir.ComplexType):
        numbers = elements(op)
        return bool((numbers != numbers.ravel()[:1]).any())
    return not cast(Any, op.attributes["value"]).is_splat


def elements(op: Operation) -> npt.NDArray[Any]:
    """The elements of a constant, of any element type that numpy holds."""
    dtype = dtype_of(op.results[0])
    if dtype in _BUFFERS:
        return np.array(op.attributes["value"])
    if dtype.kind != "c":
        return _interpreted(op, "stablehlo.convert", "f32").astype(dtype)
    part_type = f"f{dtype.itemsize * 4}"
    parts = [_interpreted(op, f"stablehlo.{part}", part_type) for part in ("real", "imag")]
    return np.stack(parts, -1).view(dtype)[..., 0]


def _interpreted(op: Operation, unary: str, element_type: str) -> npt.NDArray[Any]:
    """A constant that the bindings cannot read, after a unary op to a type that they can."""
    with mlir.context(), ir.Location.unknown():
        result = ir.RankedTensorType.get(mlir.shape(op.results[0]), ir.Type.parse(element_type))
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ir.FunctionType.get([], [result]))
        with ir.InsertionPoint(main.add_entry_block()):
            converted = ir.Operation.create(unary, [result], [cast(Any, op.clone()).results[0]])
            func.ReturnOp(list(converted.results))
        return np.array(cast(Any, stablehlo).eval_module(module, [])[0])
