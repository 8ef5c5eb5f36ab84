"""Weighted terms: what is added up in a value, each term times a number.

    2 * (%a + %b) - %b    =>    {%a: 2, %b: 1}

A number is one for each step of the counted loops around: [*steps], of size 1 along those whose
step does not matter. None stands for what is not known.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from hlo_surgery.passes.owners.labelling.step_numbers import StepNumbers

Term = TypeVar("Term", bound=Hashable)

Form = dict[Term, StepNumbers] | None

MINUS = np.array(-1.0)
ROUNDING = 1e-6


def added(forms: Iterable[Form[Term]]) -> Form[Term]:
    """The sum of some forms; not known, if one is not."""
    total: dict[Term, StepNumbers] = {}
    for form in forms:
        if form is None:
            return None
        for term, weights in form.items():
            total[term] = total[term] + weights if term in total else weights
    return total


def scaled(form: Form[Term], numbers: StepNumbers) -> Form[Term]:
    """A form times a number of each step; what is never taken need not be known."""
    if not numbers.any():
        return {}
    return form and {term: weights * numbers for term, weights in form.items()}


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
