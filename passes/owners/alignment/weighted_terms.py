"""Weighted terms: what is added up in a value, each term times a number.

    2 * (%a + %b) - %b    =>    {%a: 2, %b: 1}

A number is one for each step of the counted loops around: [*steps], of size 1 along those whose
step does not matter. None stands for what is not known.
"""

from collections.abc import Callable, Iterable

import numpy as np

from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners.labelling.step_numbers import StepNumbers

Terms = dict[Value, StepNumbers]
Form = Terms | None

MINUS = np.array(-1.0)
ROUNDING = 1e-6


def added(forms: Iterable[Form]) -> Form:
    """The sum of some forms; not known, if one is not."""
    total: Terms = {}
    for form in forms:
        if form is None:
            return None
        for value, weights in form.items():
            total[value] = total[value] + weights if value in total else weights
    return total


def scaled(form: Form, numbers: StepNumbers) -> Form:
    """A form times a number of each step; what is never taken need not be known."""
    if not numbers.any():
        return {}
    return form and {value: weights * numbers for value, weights in form.items()}


def with_terms_in_place(form: Form, terms: Callable[[Value], Form]) -> Form:
    """A form in which each value stands for terms itself."""
    if form is None:
        return None
    return added(scaled(terms(value), weights) for value, weights in form.items())


def are_alike(one: Terms, other: Terms) -> bool:
    """Whether two forms have the same terms as often, but for rounding."""
    return one.keys() == other.keys() and all(
        np.allclose(weights, other[value], rtol=ROUNDING, atol=0) for value, weights in one.items()
    )
