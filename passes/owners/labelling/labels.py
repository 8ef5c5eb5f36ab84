"""Labels: the owner of each element of a value, kept over few digits of its row-major index.

    %x : [B * L, D]      digits ((B, L), (D,))      owners [B, 1, 1] = 0 .. B-1

A dimension is a group of digits, most significant first. `owners` has an axis for each digit, of
size 1 where the owner does not depend on it; in front of these lie the axes of the steps of the
counted loops around, outermost first. So labels of millions of elements are as many as examples.

An element labelled b depends on example b at most; one labelled NONE on no example. A label may
therefore stand where NONE would do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

NONE, MANY = -1, -2
ABOVE_ALL = np.int32(2**31 - 1)
MOST_LABELS = 1 << 24
Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
Digits = tuple[int, ...]


class TooManyLabels(Exception):
    """Owners that lie in so many places that to follow them is not worth its price."""


@dataclass(frozen=True, eq=False)
class Labels:
    """`digits`: those of each dimension; `owners`: [*steps, *digits], axes of size 1 being the same
    all along.
    """

    digits: tuple[Digits, ...]
    owners: Numbers

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return tuple(math.prod(group) for group in self.digits)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of all digits, in order."""
        return tuple(size for group in self.digits for size in group)

    @cached_property
    def steps(self) -> int:
        """The number of loops whose steps have an axis."""
        return self.owners.ndim - len(self.sizes)

    @cached_property
    def is_nobodys(self) -> bool:
        """Whether no element has an owner."""
        return bool((self.owners == NONE).all())

    @cached_property
    def nobodys_share(self) -> float:
        """Of all elements, the share that has no owner."""
        return share_of_nobody(self.owners)

    @property
    def has_nobodys(self) -> bool:
        """Whether some element has no owner."""
        return self.nobodys_share > 0

    @cached_property
    def is_conflicting(self) -> bool:
        """Whether an element has several."""
        return bool((self.owners == MANY).any())

    @cached_property
    def examples(self) -> frozenset[int]:
        """The owners of all elements."""
        return frozenset(int(b) for b in np.unique(self.owners) if b >= 0)

    @cached_property
    def varies(self) -> bool:
        """Whether elements of one step may have different owners."""
        return any(size > 1 for size in self.owners.shape[self.steps :])

    @cached_property
    def has_several(self) -> bool:
        """Whether elements of one step belong to different examples."""
        rows = self.owners.reshape(math.prod(self.owners.shape[: self.steps]), -1)
        lowest = np.where(rows == NONE, ABOVE_ALL, rows).min(1, initial=ABOVE_ALL)
        return bool((rows.max(1, initial=NONE) > lowest).any())

    def covers(self, size: int) -> bool:
        """Whether each of the examples, `size` many, owns as many elements, over all steps."""
        flat = self.owners.ravel()
        counts = np.bincount(flat[flat >= 0], minlength=size)
        return len(set(counts.tolist())) == 1

    def axes(self, dim: int) -> range:
        """The axes of `owners` for the digits of a dimension."""
        first = self.steps + sum(len(group) for group in self.digits[:dim])
        return range(first, first + len(self.digits[dim]))

    def varies_along(self, dim: int) -> bool:
        """Whether the owner depends on where along a dimension an element lies."""
        return any(self.owners.shape[axis] > 1 for axis in self.axes(dim))

    def inside(self, steps: int) -> "Labels":
        """The same labels within more loops: axes of size 1 behind those of the outer ones."""
        if self.steps == steps:
            return self
        sizes = self.owners.shape
        new = (*sizes[: self.steps], *[1] * (steps - self.steps), *sizes[self.steps :])
        return Labels(self.digits, self.owners.reshape(new))


def share_of_nobody(owners: Numbers) -> float:
    """Of all these owners, the share that is none."""
    return float((owners == NONE).mean()) if owners.size else 0.0


def owned_alone(labels: Labels) -> Labels:
    """The same, but what several examples own is nobody's."""
    alone = np.where(labels.owners == MANY, np.int32(NONE), labels.owners)
    return Labels(labels.digits, alone.astype(np.int32))


def is_in_order(labels: Labels) -> bool:
    """Whether examples lie in their order along a digit, or along two, at every step alike."""
    if not labels.varies or any(size > 1 for size in labels.owners.shape[: labels.steps]):
        return True
    numbers = labels.owners.squeeze()
    if numbers.ndim > 2 or (numbers == NONE).any():
        return False
    return any(bool((np.diff(x.ravel()) > 0).all()) for x in (numbers, numbers.T))


def undivided(shape: Sequence[int]) -> tuple[Digits, ...]:
    """One digit for each dimension; none where there is nothing to count."""
    return tuple((size,) if size != 1 else () for size in shape)


def nobodys(shape: Sequence[int]) -> Labels:
    """No example in any element."""
    return everywhere(np.full((), NONE, np.int32), shape)


def everywhere(owner: Numbers, shape: Sequence[int]) -> Labels:
    """One owner for all elements of a shape; `owner`: [*steps]."""
    digits = undivided(shape)
    ones = [1] * sum(len(group) for group in digits)
    return Labels(digits, owner.reshape((*owner.shape, *ones)))


def own_rows(shape: Sequence[int], dim: int, size: int | None = None) -> Labels:
    """Example b owns place b along a dimension, as in a batch argument; of fewer examples, `size`,
    the b-th run of as many places as each has.
    """
    count = shape[dim] if size is None else size
    digits = list(undivided(shape))
    digits[dim] = tuple(n for n in (count, shape[dim] // max(count, 1)) if n != 1)
    sizes = [1] * sum(map(len, digits))
    if count != 1:
        sizes[sum(map(len, digits[:dim]))] = count
    return Labels(tuple(digits), np.arange(count, dtype=np.int32).reshape(sizes))


def join(a: Numbers, b: Numbers) -> Numbers:
    """The owners of what is made of two elements each; MANY where these have different ones."""
    agreed = np.where((b == NONE) | (a == b), a, np.int32(MANY))
    return np.where(a == NONE, b, agreed).astype(np.int32)


def over(owners: Numbers, axes: Sequence[int]) -> Numbers:
    """The owner of all elements along axes together; the axes stay, with size 1."""
    if all(owners.shape[axis] == 1 for axis in axes):
        return owners
    low = np.where(owners == NONE, ABOVE_ALL, owners).min(tuple(axes), keepdims=True)
    return between(low, owners.max(tuple(axes), keepdims=True))


def between(low: Numbers, high: Numbers) -> Numbers:
    """The owner of a group of elements whose least owner is `low`, NONE being above all, and whose
    greatest is `high`.
    """
    one = np.where(low == high, high, np.int32(MANY))
    return np.where(low == ABOVE_ALL, np.int32(NONE), one).astype(np.int32)


def of_all(labels: Labels) -> Numbers:
    """The owner of all elements of a step together: [*steps]."""
    within = range(labels.steps, labels.owners.ndim)
    return over(labels.owners, within).reshape(labels.owners.shape[: labels.steps])


def check_count(*sizes: int) -> None:
    """Raises TooManyLabels where an array of these sizes is larger than it may be."""
    if math.prod(sizes) > MOST_LABELS:
        raise TooManyLabels


def examples_at(labels: Labels, steps: Sequence[int]) -> list[frozenset[int]]:
    """The owners of all elements at each step of the loops around, as if in one row."""
    return [frozenset(counts) for counts in counts_at(labels, steps)]


def counts_at(labels: Labels, steps: Sequence[int]) -> list[dict[int, int]]:
    """How many elements each example owns at each step of the loops around, as if in one row; with
    elements that lie alike taken as one.
    """
    owners = labels.inside(len(steps)).owners
    # Of no elements, too, which reshape with -1 does not take.
    count = math.prod(owners.shape[len(steps) :])
    rows = owners.reshape(*owners.shape[: len(steps)], count)
    every = np.broadcast_to(rows, (*steps, count)).reshape(math.prod(steps), count)
    found = (np.unique(row[row >= 0], return_counts=True) for row in every)
    return [dict(zip(b.tolist(), n.tolist(), strict=True)) for b, n in found]
