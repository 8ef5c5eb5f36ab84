"""Bounds: the least and the greatest that an integer may be; where they are one, it is known.

    %v = concatenate(iota, labels)           [[0, ?], [1, ?], [2, ?]]
    %r = clamp(0, %t, 3)                     0 to 3
    %s = %r + 4 * iota                       0 to 3, 4 to 7, 8 to 11

Numbers of which nothing else is known have the bounds of their type.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners.labelling.integer_ops import Numbers


@dataclass(frozen=True)
class Bounds:
    """[*steps, *shape] each, in the value's own integer type."""

    low: Numbers
    high: Numbers

    @property
    def known(self) -> Numbers:
        """Which numbers are known."""
        return self.low == self.high

    @property
    def are_all_known(self) -> bool:
        """Whether every number is known."""
        return bool(self.known.all())

    @property
    def numbers(self) -> Numbers | None:
        """The numbers, where all are known."""
        return self.low if self.are_all_known else None

    @property
    def count(self) -> int:
        """How many numbers the widest have between them."""
        return 1 + int((self.high - self.low).max(initial=0))

    def every(self) -> Numbers:
        """All numbers between them along one more axis, the last: [*steps, *shape, count]."""
        return np.minimum(self.low[..., None] + np.arange(self.count), self.high[..., None])

    def each(self, move: Callable[[Numbers], Numbers]) -> "Bounds":
        """The same done to the least and the greatest."""
        return Bounds(move(self.low), move(self.high))


def all_known(numbers: Numbers) -> Bounds:
    """Those of numbers that are all known."""
    return Bounds(numbers, numbers)


def of_type(value: Value, steps: int) -> Bounds:
    """Those of a value of which no more is known than its type."""
    least, greatest = ends_of(dtype_of(value))
    shape = (*[1] * steps, *mlir.shape(value))
    return Bounds(np.broadcast_to(least, shape), np.broadcast_to(greatest, shape))


def ends_of(dtype: np.dtype) -> tuple[Numbers, Numbers]:
    """The least and the greatest of a type."""
    if dtype == np.bool_:
        return np.asarray(False), np.asarray(True)
    limits = jnp.iinfo(dtype)
    return np.asarray(limits.min, dtype), np.asarray(limits.max, dtype)


def tell_nothing(x: Bounds) -> bool:
    """Whether they say no more than the type does."""
    least, greatest = ends_of(x.low.dtype)
    return bool(x.low.size and (x.low == least).all() and (x.high == greatest).all())


def within(x: Bounds, rank: int, steps: int) -> Bounds:
    """The same inside more loops."""
    return x.each(lambda numbers: numbers_within(numbers, rank, steps))


def numbers_within(numbers: Numbers, rank: int, steps: int) -> Numbers:
    """[*outer, *shape] with as many axes of steps."""
    outer = numbers.ndim - rank
    sizes = numbers.shape
    return numbers.reshape((*sizes[:outer], *[1] * (steps - outer), *sizes[outer:]))


def narrowed(x: Bounds, rank: int) -> Bounds:
    """Axes of steps that do not matter get size 1."""
    for axis in range(x.low.ndim - rank):
        first = Bounds(x.low.take([0], axis), x.high.take([0], axis))
        alike = (x.low == first.low) & (x.high == first.high)
        x = first if alike.all() else x
    return x
