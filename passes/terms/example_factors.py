"""Example factors: the factors of an op's rule in which its operands hold whole examples.

owners 0 .. B-1 along one digit of a dimension    =>  one factor
the same over two digits, of two dimensions       =>  two, that of the major digit first
"""

import math
from collections.abc import Sequence

import numpy as np

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.sharding_rules import ExampleFactor, Rule
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.labelling.labels import Labels, Numbers
from hlo_surgery.passes.terms.axes import Class, Labelled

# A digit of the examples' numbers: where it lies, and how many values it has.
Digit = tuple[PerExample, int]


def example_factors(
    op: Operation, rule: Rule, classes: Sequence[Class], size: int
) -> list[ExampleFactor]:
    """The factors that hold all operands' examples, of each digit of their numbers; none if
    operands differ, or a digit does not lie in one factor.
    """
    found = set[tuple[ExampleFactor | None, ...]]()
    for known, dims, value in zip(classes, rule.operands, op.operands, strict=True):
        if isinstance(known, Labelled):
            digits = example_digits(known.labels, size)
            own = (sharding_rules.find_factor(rule, dims, value, axis, n) for axis, n in digits)
            found.add(tuple(own))
    common = found.pop() if len(found) == 1 else ()
    factors = [factor for factor in common if factor is not None]
    return factors if len(factors) == len(common) else []


def example_digits(labels: Labels, size: int) -> list[Digit]:
    """Where all examples lie, each once and whole, over one digit or two, the major one first; none
    where they lie otherwise.
    """
    steps, numbers = labels.owners.shape[: labels.steps], labels.owners
    if numbers.size != size or any(count > 1 for count in steps):
        return []
    digits = _varying_digits(labels)
    if len(digits) > 2:
        return []
    if _is_in_order(numbers):
        return digits
    is_turned = len(digits) == 2 and _is_in_order(numbers.squeeze().T)
    return digits[::-1] if is_turned else []


def _is_in_order(numbers: Numbers) -> bool:
    return np.array_equal(numbers.ravel(), np.arange(numbers.size))


def _varying_digits(labels: Labels) -> list[Digit]:
    """The digits on which the owner depends."""
    digits: list[Digit] = []
    for dim, group in enumerate(labels.digits):
        for place, axis in enumerate(labels.axes(dim)):
            if labels.owners.shape[axis] > 1:
                before, after = math.prod(group[:place]), math.prod(group[place + 1 :])
                digits.append((PerExample(dim, before, after), group[place]))
    return digits
