"""Weighted terms: what is added up in a value, each term times a number, and what ops make of it.

    2 * (%a + %b) - %b            =>  {%a: 2, %b: 1}
    %d = divide %g, %i + 1        =>  the terms of %g, each times 1, 1/2, 1/3, ...
    %s = select %i < 2, %a, %b    =>  the terms of %a, times 1, 1, 0, .. ; of %b, times 0, 0, 1, ..

A number is one for each step of the counted loops around: [*steps], of size 1 along those whose
step does not matter. None stands for what is not known.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.step_numbers import StepNumbers, step_numbers, within

Term = TypeVar("Term", bound=Hashable)

Form = dict[Term, StepNumbers] | None

MINUS = np.array(-1.0)
ROUNDING = 1e-6
RULES = frozenset(
    f"stablehlo.{name}"
    for name in ("add", "subtract", "negate", "convert", "multiply", "divide", "select")
)


def added(forms: Iterable[Form[Term]]) -> Form[Term]:
    """The sum of some forms; not known, if one is not."""
    total: dict[Term, StepNumbers] = {}
    for form in forms:
        if form is None:
            return None
        for term, weights in form.items():
            total[term] = np.add(*_alike(total[term], weights)) if term in total else weights
    return total


def scaled(form: Form[Term], numbers: StepNumbers) -> Form[Term]:
    """A form times a number of each step; what is never taken need not be known."""
    if not numbers.any():
        return {}
    return form and {term: np.multiply(*_alike(w, numbers)) for term, w in form.items()}


def _alike(*weights: StepNumbers) -> list[StepNumbers]:
    """The same numbers inside as many loops."""
    deepest = max(w.ndim for w in weights)
    return [within(w, deepest) for w in weights]


def with_terms_in_place(form: Form[Term], terms: Callable[[Term], Form[Term]]) -> Form[Term]:
    """A form in which each term stands for terms itself."""
    if form is None:
        return None
    return added(scaled(terms(term), weights) for term, weights in form.items())


def are_alike(one: Mapping[Term, StepNumbers], other: Mapping[Term, StepNumbers]) -> bool:
    """Whether two forms have the same terms as often, but for rounding."""
    return one.keys() == other.keys() and all(
        is_as_much(weights, other[term]) for term, weights in one.items()
    )


def is_as_much(one: StepNumbers, other: StepNumbers) -> bool:
    """Whether two weights are the same, but for rounding."""
    return bool(np.allclose(one, other, rtol=ROUNDING, atol=0))


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
