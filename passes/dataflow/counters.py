"""Counters: given a loop, how often it runs, and what its counters take.

%i = 0, 1, ... N-1 (compare LT %i, N ; add %i, 1)    =>    trips: N, %i: [0, ..., N-1]
"""

from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.numbers import Numbers, evaluate
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, stablehlo

LONGEST = 1 << 20


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
