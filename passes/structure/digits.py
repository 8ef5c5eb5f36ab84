"""Digits: what a dimension counts by, most significant first; nodes of a union-find that may split.

    [B * L]                  two digits, (B, L)
    reshape [B, L, D] -> [B * L, D]        unify (B), (L) with (B * L): the product splits
    reshape [B] -> [M, b]                  the digit B splits into (M, b), wherever it lies

Two digits that were unified are one. A unification that fails has changed nothing that matters: who
asks for it notes that the two do not align.
"""

import math
from collections.abc import Iterable, Iterator, Sequence


class Digit:
    """A digit of some size. Its root stands for it; a root that was split has parts, the major one
    first.
    """

    __slots__ = ("parent", "parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.parent: Digit | None = None
        self.parts: tuple[Digit, Digit] | None = None

    @property
    def root(self) -> "Digit":
        """The one digit that stands for all that were unified with this one."""
        digit = self
        while digit.parent is not None:
            if digit.parent.parent is not None:
                digit.parent = digit.parent.parent
            digit = digit.parent
        return digit

    def split(self, minor: int) -> None:
        """Split a root in two, of which the minor one has this size."""
        self.parts = Digit(self.size // minor), Digit(minor)

    def join(self, other: "Digit") -> None:
        """Have one root for two roots of a size, of which the other has no parts."""
        other.parent = self


Digits = list[Digit]


def leaves(digits: Iterable[Digit]) -> Digits:
    """The roots without parts that digits are made of, in order.

    >>> [digit.size for digit in leaves([Digit(4), Digit(3)])]
    [4, 3]
    """
    found: Digits = []
    for digit in digits:
        root = digit.root
        if root.parts is None:
            found.append(root)
        else:
            found += leaves(root.parts)
    return found


def size_of(digits: Iterable[Digit]) -> int:
    """How many places digits count."""
    return math.prod(digit.size for digit in digits)


def unify(one: Sequence[Digit], two: Sequence[Digit]) -> bool:
    """Have two sequences of one total size be the same digits; False where they do not align.

    >>> whole, major, minor = Digit(12), Digit(4), Digit(3)
    >>> unify([whole], [major, minor]), leaves([whole]) == leaves([major, minor])
    (True, True)
    >>> unify([Digit(4), Digit(3)], [Digit(3), Digit(4)])
    False
    """
    if len(one) == len(two) == 1 and _unify_roots(one[0].root, two[0].root):
        return True
    left, right = list(one), list(two)
    while left and right:
        # Each is looked up anew: what stood for it may have been unified or split on the way.
        left[-1:], right[-1:] = leaves(left[-1:]), leaves(right[-1:])
        x, y = left[-1], right[-1]
        if x is y:
            left.pop()
            right.pop()
        elif x.size == y.size:
            x.join(y)
        elif x.size % y.size == 0:
            x.split(y.size)
        elif y.size % x.size == 0:
            y.split(x.size)
        else:
            return False
    return not left and not right


def _unify_roots(x: Digit, y: Digit) -> bool:
    """Have two roots be one, if neither has parts and they have one size: so it mostly is."""
    if x is y:
        return True
    alike = x.size == y.size and x.parts is None and y.parts is None
    if alike:
        x.join(y)
    return alike


def aligned_runs(one: Sequence[Digit], two: Sequence[Digit]) -> Iterator[tuple[Digits, Digits]]:
    """Runs of digits of two row-major orders that begin and end at the same places, from the back.

    >>> a, b, c, d = (Digit(n) for n in (2, 6, 4, 3))
    >>> [([x.size for x in p], [y.size for y in q]) for p, q in aligned_runs([a, b], [c, d])]
    [([2, 6], [4, 3])]
    """
    left, right = leaves(one), leaves(two)
    while left and right:
        xs, ys = [left.pop()], [right.pop()]
        x, y = xs[0].size, ys[0].size
        while x != y:
            run, rest = (xs, left) if x < y else (ys, right)
            run.insert(0, rest.pop())
            x, y = (x * run[0].size, y) if run is xs else (x, y * run[0].size)
        yield xs, ys
