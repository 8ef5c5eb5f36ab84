"""Numbers of which some are known: an index vector holds places, and what only a run tells.

    %v = concatenate(iota, labels)           [[0, ?], [1, ?], [2, ?]]
    %w = clamp(0, %v, [2, 9])                [[0, ?], [1, ?], [2, ?]]

What moves elements moves what is known of them; of an op that makes each element of those at its
place, what it makes of known ones is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.integer_ops import (
    BY_ELEMENT,
    RULES,
    Numbers,
    Undefined,
    spread,
)


@dataclass(frozen=True)
class PartlyKnown:
    """Numbers, [*steps, *shape], and which of them are known: the others say nothing."""

    numbers: Numbers
    known: Numbers

    @property
    def are_all(self) -> bool:
        """Whether every number is known."""
        return bool(self.known.all())


def all_known(numbers: Numbers) -> PartlyKnown:
    """Numbers that are all known."""
    return PartlyKnown(numbers, np.ones(numbers.shape, np.bool_))


def none_known(value: Value, steps: int) -> PartlyKnown:
    """Those of a value of which nothing is known."""
    shape = (*[1] * steps, *mlir.shape(value))
    return PartlyKnown(np.zeros(shape, dtype_of(value)), np.zeros(shape, np.bool_))


def within(x: PartlyKnown, rank: int, steps: int) -> PartlyKnown:
    """The same inside more loops."""
    return PartlyKnown(numbers_within(x.numbers, rank, steps), numbers_within(x.known, rank, steps))


def numbers_within(numbers: Numbers, rank: int, steps: int) -> Numbers:
    """[*outer, *shape] with as many axes of steps."""
    outer = numbers.ndim - rank
    sizes = numbers.shape
    return numbers.reshape((*sizes[:outer], *[1] * (steps - outer), *sizes[outer:]))


def narrowed(x: PartlyKnown, rank: int) -> PartlyKnown:
    """Axes of steps that do not matter get size 1."""
    for axis in range(x.numbers.ndim - rank):
        first = PartlyKnown(x.numbers.take([0], axis), x.known.take([0], axis))
        alike = (x.known == first.known) & (~x.known | (x.numbers == first.numbers))
        x = first if alike.all() else x
    return x


def made_of(op: Operation, steps: int, operands: Sequence[PartlyKnown]) -> PartlyKnown | None:
    """What an op makes of numbers, in its own integer type; None if nothing of it is known."""
    known = _known(op, steps, operands)
    if known is None or (known.size and not known.any()):
        return None
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(RULES[op.name](op, steps, *(x.numbers for x in operands)))
    except Undefined:
        return None
    numbers = made.astype(dtype_of(op.results[0]))
    return PartlyKnown(numbers, np.broadcast_to(known, numbers.shape))


def _known(op: Operation, steps: int, operands: Sequence[PartlyKnown]) -> Numbers | None:
    """Which elements of a result are."""
    if op.name in BY_ELEMENT:
        like = max((x.known for x in operands), key=lambda known: known.ndim)
        return reduce(np.logical_and, (spread(x.known, like, steps) for x in operands))
    if op.name != "stablehlo.dynamic_slice":
        return RULES[op.name](op, steps, *(x.known for x in operands))
    array, *starts = operands
    if not all(start.are_all for start in starts):
        return None
    return RULES[op.name](op, steps, array.known, *(start.numbers for start in starts))
