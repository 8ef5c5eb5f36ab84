"""Term rules: what an op makes of weighted terms.

    %d = divide %g, %i + 1        =>  the terms of %g, each times 1, 1/2, 1/3, ...
    %s = select %i < 2, %a, %b    =>  the terms of %a, times 1, 1, 0, .. ; of %b, times 0, 0, 1, ..

Numbers are those known of each step of the counted loops around.
"""

from collections.abc import Sequence

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.weighted_terms import MINUS, Form, Term, added, scaled
from hlo_surgery.passes.owners.classes import Owners
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.step_numbers import StepNumbers, step_numbers, within

RULES = frozenset(
    f"stablehlo.{name}"
    for name in ("add", "subtract", "negate", "convert", "multiply", "divide", "select")
)


def combined(owners: Owners, op: Operation, operands: Sequence[Form[Term]]) -> Form[Term]:
    """The form of what is added up, or is multiplied by a number of the step."""
    match op.name:
        case "stablehlo.add":
            return added(operands)
        case "stablehlo.subtract":
            return added([operands[0], scaled(operands[1], MINUS)])
        case "stablehlo.negate":
            return scaled(operands[0], MINUS)
        case "stablehlo.convert":
            return operands[0]
        case "stablehlo.multiply" | "stablehlo.divide":
            return _scaled_by_number(owners, op, operands)
        case "stablehlo.select":
            return chosen(owners, op, operands[:0:-1])
        case _:
            return None


def _scaled_by_number(owners: Owners, op: Operation, operands: Sequence[Form[Term]]) -> Form[Term]:
    """The form of a sum times or over a number of each step."""
    is_product = op.name == "stablehlo.multiply"
    for number in [1, 0] if is_product else [1]:
        numbers = _numbers(owners, op, op.operands[number])
        if numbers is not None and (is_product or numbers.all()):
            return scaled(operands[1 - number], numbers if is_product else 1 / numbers)
    return None


def chosen(owners: Owners, op: Operation, forms: Sequence[Form[Term]]) -> Form[Term]:
    """The form of what a number of each step chooses: the first form at 0."""
    numbers = _numbers(owners, op, op.operands[0])
    if numbers is None:
        return None
    number = np.where((numbers < 0) | (numbers >= len(forms)), len(forms) - 1, numbers)
    return added(scaled(form, (number == i) * 1.0) for i, form in enumerate(forms))


def _numbers(owners: Owners, op: Operation, value: Value) -> StepNumbers | None:
    numbers = step_numbers(owners, value)
    return None if numbers is None else within(numbers, _depth(owners, op))


def once(owners: Owners, op: Operation) -> StepNumbers:
    """The weight 1 of what is used as it is."""
    return np.ones([1] * _depth(owners, op))


def _depth(owners: Owners, op: Operation) -> int:
    return sum(counted_loop(owners, loop) is not None for loop in mlir.enclosing_loops(op))
