"""Round trips: given a module, its added ops without those that undo each other.

    reshape (reshape %x)                     =>   reshape %x, or %x where that has the shape already
    divide (multiply %x, 8), 8               =>   %x
    multiply %x, (divide (multiply 8, 8), 8) =>   multiply %x, 8

Strategies write what they do one step at a time, and steps meet. The program's own ops are left as
they are, and so are the bits of what it returns.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.emit.scopes import scope_of
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, stablehlo

INVERSE = {"stablehlo.multiply": "stablehlo.divide", "stablehlo.divide": "stablehlo.multiply"}
# What IEEE rounds alike on every platform.
FOLDED: dict[str, Callable[..., Any]] = {
    "stablehlo.multiply": np.multiply,
    "stablehlo.divide": np.divide,
}
FLOATS = np.dtype(np.float32), np.dtype(np.float64)


def drop_round_trips(module: Module) -> None:
    """Let what uses added ops that undo each other use what went in. They are left, unused."""
    for op in mlir.all_operations(module):
        same = SAME.get(op.name)
        value = same(op) if same else None
        # Locations are read last, since that takes longest.
        if value is not None and value.type == op.results[0].type and scope_of(op):
            op.results[0].replace_all_uses_with(value)


def _moved(op: Operation) -> Value | None:
    """What a reshape is of, behind all that leaves the elements in their order; itself reshaped, if
    there are such.
    """
    if not _keeps_order(op):
        return None
    source, steps = op.operands[0], 1
    while (before := mlir.defining_operation(source)) is not None and _keeps_order(before):
        source, steps = before.operands[0], steps + 1
    if source.type == op.results[0].type:
        return source
    return _made(op, "stablehlo.reshape", source) if steps > 1 else None


def _keeps_order(op: Operation) -> bool:
    """Whether elements keep their row-major order, as dimensions of size 1 may be transposed."""
    if op.name != "stablehlo.transpose":
        return op.name == "stablehlo.reshape"
    shape = mlir.shape(op.operands[0])
    moved = [d for d in integers(op, "permutation") if shape[d] != 1]
    return moved == sorted(moved)


def _made(op: Operation, name: str, operand: Value) -> Value:
    """An op in place of another."""
    with mlir.context(), op.location, ir.InsertionPoint(op):
        return ir.Operation.create(name, [op.results[0].type], [operand]).results[0]


def _folded(op: Operation, function: Callable[..., Any]) -> Value | None:
    """One number made of constants, as a constant; None of what underflows, which platforms do each
    in its own way.
    """
    result = op.results[0]
    if mlir.shape(result):
        return None
    sources = [mlir.defining_operation(v) for v in op.operands]
    constants = [s for s in sources if s is not None and s.name == "stablehlo.constant"]
    values = [*op.operands, result]
    if len(constants) < len(sources):
        return None
    if any(dtype_of(v) not in FLOATS for v in values):
        return None
    with np.errstate(all="ignore"):
        number = np.asarray(function(*map(elements, constants))).astype(dtype_of(result))
    if number != 0 and abs(number) < np.finfo(number.dtype).tiny:
        return None
    with mlir.context(), op.location, ir.InsertionPoint(op):
        return cast(Value, stablehlo.constant(cast(Any, ir.DenseElementsAttr).get(number)))


def _scaled_back(op: Operation) -> Value | None:
    """What is scaled by a number, and by its inverse before that; or by one."""
    for scaled, number in _scalings(op):
        if number == 1:
            return scaled
        before = mlir.defining_operation(scaled)
        if before is None or before.name != INVERSE[op.name] or scope_of(before) is None:
            continue
        undone = [source for source, other in _scalings(before) if other == number]
        if undone and number != 0 and math.isfinite(number):
            return undone[0]
    return None


def _scalings(op: Operation) -> Iterator[tuple[Value, float]]:
    """What an op multiplies, or divides, by one number, and that number."""
    pairs = [(op.operands[0], op.operands[1])]
    if op.name == "stablehlo.multiply":
        pairs.append((op.operands[1], op.operands[0]))
    for scaled, by in pairs:
        number = _splat(by)
        if number is not None:
            yield scaled, number


def _splat(value: Value) -> float | None:
    """The one number of all elements, if a constant shows it."""
    source = mlir.defining_operation(value)
    while source is not None and source.name == "stablehlo.broadcast_in_dim":
        source = mlir.defining_operation(source.operands[0])
    if source is None or source.name != "stablehlo.constant" or dtype_of(value) not in FLOATS:
        return None
    numbers = elements(source)
    is_one = numbers.size > 0 and bool((numbers == numbers.flat[0]).all())
    return float(numbers.flat[0]) if is_one else None


def _copied(op: Operation) -> Value | None:
    """What a broadcast leaves as it is."""
    dims = integers(op, "broadcast_dimensions")
    return op.operands[0] if dims == tuple(range(len(dims))) else None


def _converted(op: Operation) -> Value | None:
    """A constant in another type."""
    return _folded(op, lambda x: x)


def _scaled(op: Operation) -> Value | None:
    """A product or quotient of constants, or what is scaled back."""
    return _folded(op, FOLDED[op.name]) or _scaled_back(op)


# Finds a value that holds the same, of fewer ops; None where there is none.
SAME: dict[str, Callable[[Operation], Value | None]] = {
    "stablehlo.broadcast_in_dim": _copied,
    "stablehlo.convert": _converted,
    "stablehlo.divide": _scaled,
    "stablehlo.multiply": _scaled,
    "stablehlo.reshape": _moved,
    "stablehlo.transpose": _moved,
}
