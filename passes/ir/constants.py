"""Constants: given a value that no argument reaches, its numbers, by the reference interpreter."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of, has_numbers
from hlo_surgery.passes.ir.integer_division import guarded, is_defined, is_integer_division
from hlo_surgery.passes.ir.mlir import Operation, Value, func, ir, stablehlo
from hlo_surgery.passes.ir.traits import Kind, ops_of

LARGEST = 1 << 20  # elements: an index larger than this is not worth evaluating
# Elementwise ops that are evaluated.
EVALUATED, COPIES = ops_of(Kind.EVALUATED), ops_of(Kind.COPIES)
ARITHMETIC = ops_of(Kind.ELEMENTWISE | Kind.EVALUATED)
# Of these element types the MLIR bindings hand over a constant's elements as a buffer.
_BUFFERS = frozenset(
    map(np.dtype, ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
)


def evaluate(value: Value) -> npt.NDArray[Any] | None:
    """The numbers of a value; None where it rests on an argument, on ops that are not worth
    evaluating, or on none.
    """
    ops = _slice(value)
    if ops is None or dtype_of(value) not in _BUFFERS:
        return None
    with mlir.context(), ir.Location.unknown():
        module, function = begun_main([])
        known: dict[Value, Value] = {}
        with ir.InsertionPoint(mlir.body(function)):
            divided = [v for op in ops for v in _copy(op, known)]
        return interpret(module, function, [], [known[value], *divided])


def applied(op: Operation, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """What an op of one result, which takes nothing else, makes of these arrays."""
    with mlir.context(), ir.Location.unknown():
        module, function = begun_main([v.type for v in op.operands])
        block = mlir.body(function)
        with ir.InsertionPoint(block):
            _copy(op, dict(zip(op.operands, block.arguments, strict=True)))
        found = interpret(module, function, operands, mlir.operations(block)[0].results)
    assert found is not None, "no division"
    return found


def begun_main(kinds: Sequence[ir.Type]) -> tuple[ir.Module, func.FuncOp]:
    """A module, and its main, which takes these types and does nothing yet."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("main", ir.FunctionType.get(list(kinds), []))
    function.add_entry_block()
    return module, function


def interpret(
    module: ir.Module,
    function: func.FuncOp,
    arrays: Sequence[npt.NDArray[Any]],
    values: Sequence[Value],
) -> npt.NDArray[Any] | None:
    """The first of these values of the module's function, which is given arrays. `values[1:]`:
    dividends and divisors, by turns.

    None where a division has no result.
    """
    arguments = [cast(Any, ir.DenseElementsAttr).get(np.array(x, order="C")) for x in arrays]
    with ir.InsertionPoint(mlir.body(function)):
        func.ReturnOp(list(values))
    inputs = [v.type for v in mlir.body(function).arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(inputs, [v.type for v in values])
    )
    found, *divided = map(np.array, cast(Any, stablehlo).eval_module(module, arguments))
    return found if is_defined(divided) else None


def _slice(value: Value) -> list[Operation] | None:
    """The ops that make the value, in order; None where one cannot be evaluated."""
    ops: dict[Value, Operation] = {}
    pending = [(value, False)]
    while pending:
        current, ready = pending.pop()
        op = mlir.defining_operation(current)
        if current in ops:
            continue
        if op is None or not _is_evaluated(op) or math.prod(mlir.shape(current)) > LARGEST:
            return None
        if ready:
            ops[current] = op
        else:
            pending += [(current, True), *((operand, False) for operand in op.operands)]
    return list(ops.values())


def _is_evaluated(op: Operation) -> bool:
    """Whether the interpreter takes the op, and finds what all platforms do.

    Complex numbers and division by zero would end it. Truth values that are added are an or to it
    and to XLA as it runs, but not to XLA as it folds constants.
    """
    divides = is_integer_division(op) and dtype_of(op.results[0]) not in _BUFFERS
    differs = op.name == "stablehlo.add" and not has_numbers(op)
    is_taken = op.name in EVALUATED and not mlir.is_complex(op.results[0])
    return is_taken and not divides and not differs


def _copy(op: Operation, known: dict[Value, Value]) -> list[Value]:
    """Copy an op of known operands; what it divides, and by what."""
    copied = cast(Any, op.clone()).operation
    for i, operand in enumerate(op.operands):
        copied.operands[i] = known[operand]
    known.update(zip(op.results, copied.results, strict=True))
    return guarded(copied)


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
