"""Counters: given a loop, how often it runs, and what its counters and index expressions take.

    %i = 0, 1, ... N-1 (compare LT %i, N ; add %i, 1)    =>    trips: N
                                                               subtract (N-1), %i: [N-1, ..., 0]

Index expressions are evaluated for all iterations at once, so that no form of them needs to be
recognised.
"""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import ARITHMETIC, begun_main, evaluate, interpret
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.integer_division import guarded
from hlo_surgery.passes.ir.mlir import Operation, Value, ir, stablehlo

Numbers = npt.NDArray[Any]
LONGEST = 1 << 20
SCALAR_OPS = ARITHMETIC | {"stablehlo.reshape"}


def counter_values(loop: Operation) -> dict[Value, Numbers] | None:
    """Each counter's numbers (by body argument), one an iteration; None for unknown trips."""
    condition, body = (region.blocks[0] for region in loop.regions)
    steps = {
        i: found
        for i in range(len(loop.operands))
        if (found := _start_and_step(loop, body, i)) is not None
    }
    trips = _trips(condition, steps)
    if trips is None:
        return None
    return {body.arguments[i]: _numbers(start, step, trips) for i, (start, step) in steps.items()}


def _numbers(start: Numbers, step: int, trips: int) -> Numbers:
    """What a counter takes, in its own type, in which it may wrap."""
    moved = np.arange(trips).astype(start.dtype) * np.asarray(abs(step)).astype(start.dtype)
    return start + moved if step > 0 else start - moved


def _start_and_step(loop: Operation, body: Any, i: int) -> tuple[Numbers, int] | None:
    """An integer that starts at a constant, and to which a constant is added, or from which one is
    subtracted; a truth value does not grow.
    """
    returned = mlir.operands(mlir.return_operation(body))[i]
    op = mlir.defining_operation(returned)
    if op is None or mlir.shape(returned) or mlir.is_inexact(returned):
        return None
    sign, term = _signed_term(op, body.arguments[i])
    if term is None or dtype_of(returned) == np.bool_:
        return None
    start, step = evaluate(loop.operands[i]), evaluate(term)
    return None if start is None or step is None else (start, sign * int(step))


def _signed_term(op: Operation, counter: Value) -> tuple[int, Value | None]:
    """What an op adds to a counter, or, with the sign -1, subtracts from it; None for others."""
    if op.name == "stablehlo.subtract":
        return -1, op.operands[1] if op.operands[0] == counter else None
    terms = [v for v in op.operands if v != counter] if op.name == "stablehlo.add" else []
    return 1, terms[0] if len(terms) == 1 else None


def _trips(condition: Any, steps: dict[int, tuple[Numbers, int]]) -> int | None:
    """How often a comparison of a counter with a constant holds before it first fails."""
    op = mlir.defining_operation(mlir.operands(mlir.return_operation(condition))[0])
    if op is None or op.name != "stablehlo.compare":
        return None
    numbers = [i for i in steps if condition.arguments[i] == op.operands[0]]
    limit = evaluate(op.operands[1])
    if not numbers or limit is None:
        return None
    start, step = steps[numbers[0]]
    trips = rounds_while(_direction(op), int(start) - int(limit), step)
    if trips is None or trips > LONGEST or not _is_held(int(start) + trips * step, start):
        return None
    return trips


def _direction(compare: Operation) -> str:
    attribute = compare.attributes["comparison_direction"]
    return str(cast(Any, stablehlo).ComparisonDirectionAttr(attribute).value)


def _is_held(number: int, alike: Numbers) -> bool:
    """Whether a number is one of an integer type's: beyond them a counter wraps, and goes on."""
    held = np.iinfo(alike.dtype)
    return int(held.min) <= number <= int(held.max)


def rounds_while(direction: str, gap: int, step: int) -> int | None:
    """How often a gap that grows by `step` compares so with zero before it first does not.

    None if it always does, as it would in a type of any size, or where that is not known.

    >>> rounds_while("LT", -7, 1), rounds_while("GE", 6, -2), rounds_while("NE", -6, 3)
    (7, 4, 2)
    >>> rounds_while("LT", 0, 1), rounds_while("LT", -1, 0), rounds_while("NE", 1, 1)
    (0, None, None)
    """
    match direction:
        case "LT" | "LE":
            return _rounds_below(gap - (direction == "LE"), step)
        case "GT" | "GE":
            return _rounds_below(-gap - (direction == "GE"), -step)
        case "NE" if gap == 0:
            return 0
        case "NE" if step and gap % step == 0 and gap // -step > 0:
            return gap // -step
        case _:
            return None


def _rounds_below(gap: int, step: int) -> int | None:
    """How often a gap is below zero before it first is not."""
    if gap >= 0:
        return 0
    return -(gap // step) if step > 0 else None


def values_over(value: Value, counters: dict[Value, Numbers]) -> Numbers | None:
    """A scalar's numbers, one an iteration; None if it is not of counters and constants alone."""
    ops: list[Operation] = []
    known: set[Value] = set(counters)
    if not _collect(value, known, ops):
        return None
    trips = len(next(iter(counters.values())))
    with mlir.context(), ir.Location.unknown():
        module, function = begun_main([_stretched(v, trips) for v in counters])
        block = mlir.body(function)
        made: dict[Value, Value] = dict(zip(counters, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in ops:
                stretch = _look_up if op.name == "stablehlo.dynamic_slice" else _stretch
                made[op.results[0]] = stretch(op, made, trips)
        divided = [v for op in mlir.operations(block) for v in guarded(op)]
        arrays = list(counters.values())
        return interpret(module, function, arrays, [made[value], *divided])


def _collect(value: Value, known: set[Value], ops: list[Operation]) -> bool:
    """The ops of one number of counters and constants, in order; False if it rests on more."""
    pending = [value]
    while pending:
        current = pending[-1]
        op, operands = _number_from(current) if current not in known else (None, [])
        if op is None and current not in known:
            return False
        missing = [v for v in operands if v not in known]
        pending += missing
        if not missing:
            pending.pop()
        if op is not None and not missing:
            known.add(current)
            ops.append(op)
    return True


def _number_from(value: Value) -> tuple[Operation | None, list[Value]]:
    """The op that makes one number of others, and those; no op where it cannot be followed."""
    op = mlir.defining_operation(value)
    if op is None or math.prod(mlir.shape(value)) != 1 or mlir.is_inexact(value):
        return None, []
    if op.name == "stablehlo.dynamic_slice":
        return (op, list(op.operands)[1:]) if evaluate(op.operands[0]) is not None else (None, [])
    return (op, list(op.operands)) if op.name in SCALAR_OPS | {"stablehlo.constant"} else (None, [])


def _stretched(value: Value, trips: int) -> ir.Type:
    return ir.RankedTensorType.get([trips], cast(ir.Type, mlir.element_type(value)))


def _stretch(op: Operation, made: dict[Value, Value], trips: int) -> Value:
    """A scalar op on all iterations at once."""
    kind = _stretched(op.results[0], trips)
    if op.name == "stablehlo.constant":
        constant = cast(Any, op.clone()).operation.results[0]
        return ir.Operation.create(
            "stablehlo.broadcast_in_dim",
            results=[kind],
            operands=[constant],
            attributes={"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])},
        ).results[0]
    if op.name == "stablehlo.reshape":
        return made[op.operands[0]]
    operands = [made[v] for v in op.operands]
    return ir.Operation.create(
        op.name, results=[kind], operands=operands, attributes=mlir.attributes(op)
    ).results[0]


def _look_up(op: Operation, made: dict[Value, Value], trips: int) -> Value:
    """A constant's element at scalar indices, in all iterations: gathers clamp as slices do."""
    found = evaluate(op.operands[0])
    assert found is not None
    table = stablehlo.constant(cast(Any, ir.DenseElementsAttr).get(found))
    column = ir.RankedTensorType.get([trips, 1], cast(ir.Type, mlir.element_type(op.operands[1])))
    columns = [cast(Any, stablehlo).reshape(column, made[v]) for v in list(op.operands)[1:]]
    rank = found.ndim
    numbers = cast(Any, stablehlo).GatherDimensionNumbers.get(
        [], list(range(rank)), [], [], list(range(rank)), 1
    )
    return cast(Any, stablehlo).gather(
        table,
        cast(Any, stablehlo).concatenate(columns, 1),
        numbers,
        ir.DenseI64ArrayAttr.get([1] * rank),
    )


def is_permutation(numbers: Numbers | None, size: int) -> bool:
    """Whether the numbers are 0 .. size-1, each once."""
    return (
        numbers is not None
        and len(numbers) == size
        and bool((np.sort(numbers) == np.arange(size)).all())
    )
