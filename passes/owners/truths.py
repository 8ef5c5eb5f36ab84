"""Truths: what predicates are for an example of which some are known, and what it gets by selects.

    %on: false    =>  and(%on, %more): false, not(%on): true, select(%on, %new, %old): %old

A truth is that of all elements that the example has of a value.
"""

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import COPIES, is_splat
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value

LOGICAL = frozenset(f"stablehlo.{name}" for name in ("not", "and", "or", "select"))
Truths = dict[Value, bool]


def chosen(value: Value, known: Truths) -> Value:
    """What a value is where these are known: what its selects choose."""
    op = mlir.defining_operation(value)
    while op is not None and op.name == "stablehlo.select":
        truth = truth_of(op.operands[0], known)
        if truth is None:
            return value
        value = op.operands[1 if truth else 2]
        op = mlir.defining_operation(value)
    return value


def truth_of(value: Value, known: Truths) -> bool | None:
    """What a predicate is where these are known; None if that is not known."""
    found: dict[Value, bool | None] = dict(known)
    pending = [value]
    while pending:
        op = mlir.defining_operation(pending[-1])
        logical = op if op is not None and _keeps_truth(op) else None
        missing = [v for v in logical.operands if v not in found] if logical is not None else []
        if pending[-1] not in found and missing:
            pending += missing
            continue
        current = pending.pop()
        if current not in found:
            found[current] = (
                _of_operands(logical, [found[v] for v in logical.operands])
                if logical
                else _of_constant(current)
            )
    return found[value]


def _keeps_truth(op: Operation) -> bool:
    """Whether an op makes 0 or 1 of what is 0 or 1, as truth values are: `not` of an integer makes
    other numbers.
    """
    if op.name not in LOGICAL | COPIES:
        return False
    kind = dtype_of(op.results[0])
    return kind == np.bool_ or (op.name in COPIES and _holds_both(kind))


def _holds_both(kind: np.dtype) -> bool:
    """Whether 0 and 1 are of an element type; in a float8 of exponents alone, 0 is not."""
    return bool((np.arange(2).astype(kind) == np.arange(2)).all())


def _of_constant(value: Value) -> bool | None:
    if dtype_of(value) != np.bool_:
        return None
    return next((truth for truth in (False, True) if is_splat(value, truth)), None)


def _of_operands(op: Operation, known: list[bool | None]) -> bool | None:
    """What a logical op makes of these, None being what is not known."""
    match op.name:
        case "stablehlo.not":
            return None if known[0] is None else not known[0]
        case "stablehlo.and":
            return False if False in known else (True if known == [True, True] else None)
        case "stablehlo.or":
            return True if True in known else (False if known == [False, False] else None)
        case "stablehlo.select":
            chosen = known[1:] if known[0] is None else [known[1 if known[0] else 2]]
            return chosen[0] if chosen[0] == chosen[-1] else None
        case _:
            return known[0]
