"""Step numbers: a number that fills a value, at every step of the counted loops around its place.

    while %i < 3 { %n = convert %i + 1 ; divide %g, broadcast_in_dim %n }        %n: [1., 2., 3.]

Floats are known to rounding alone. They tell weights, never an index.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.constants import evaluate
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.bounds import numbers_within
from hlo_surgery.passes.owners.labelling.indices import integers_of
from hlo_surgery.passes.owners.owners import Owners

# [*steps], an axis for each counted loop, of size 1 where its step does not matter.
StepNumbers = npt.NDArray[Any]

ARITHMETIC: dict[str, Callable[..., StepNumbers]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.divide": np.divide,
    "stablehlo.negate": np.negative,
}
SAME = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("broadcast_in_dim", "convert", "dynamic_slice", "reshape", "reverse", "slice"),
        "transpose",
    )
)


def step_numbers(owners: Owners, value: Value) -> StepNumbers | None:
    """The number that all elements of a value are; None where they differ, or only a run tells."""
    known: dict[Value, StepNumbers | None] = {}
    pending = [value]
    while pending:
        missing = [v for v in _made_from(pending[-1]) if v not in known]
        pending += missing
        if not missing:
            current = pending.pop()
            known[current] = _number(owners, current, known)
    return known[value]


def _made_from(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None or not mlir.is_inexact(value):
        return []
    if op.name == mlir.BARRIER:
        return [behind_barriers(value)]
    if op.name in SAME or _is_total(op):
        # Where a slice is taken makes no difference.
        return [op.operands[0]]
    return list(op.operands) if op.name in ARITHMETIC else []


def _is_total(op: Operation) -> bool:
    """Whether an op adds up elements, on top of zero."""
    adds = op.name == "stablehlo.reduce" and len(op.results) == 1 and linearity.sums(op, 0)
    return adds and vanishes(op.operands[1])


def _number(
    owners: Owners, value: Value, known: dict[Value, StepNumbers | None]
) -> StepNumbers | None:
    if not mlir.is_inexact(value):
        return _of_integers(owners, value)
    op = mlir.defining_operation(value)
    if op is not None and op.name == "stablehlo.constant":
        constant = evaluate(value)
        return None if constant is None else _filling(constant, 0)
    operands = [known[v] for v in _made_from(value)]
    numbers = [number for number in operands if number is not None]
    return _of_floats(op, numbers) if op and numbers and len(numbers) == len(operands) else None


def _of_integers(owners: Owners, value: Value) -> StepNumbers | None:
    numbers = integers_of(owners, value)
    return None if numbers is None else _filling(numbers, numbers.ndim - len(mlir.shape(value)))


def _filling(numbers: StepNumbers, steps: int) -> StepNumbers | None:
    """The one number of each step."""
    flat = numbers.reshape(*numbers.shape[:steps], -1).astype(np.float64)
    first = flat[..., :1]
    return first[..., 0] if first.size and (flat == first).all() else None


def _of_floats(op: Operation, operands: list[StepNumbers]) -> StepNumbers | None:
    if op.name in SAME or op.name == mlir.BARRIER:
        return operands[0]
    if _is_total(op):
        sizes = [math.prod(mlir.shape(v)) for v in (op.operands[0], op.results[0])]
        return operands[0] * (sizes[0] // max(sizes[1], 1))
    steps = max(numbers.ndim for numbers in operands)
    with np.errstate(all="ignore"):
        found = ARITHMETIC[op.name](*(within(numbers, steps) for numbers in operands))
    return found if np.isfinite(found).all() else None


def within(numbers: StepNumbers, steps: int) -> StepNumbers:
    """The same inside more loops."""
    return numbers_within(numbers, 0, steps)
