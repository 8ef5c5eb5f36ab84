"""Structure: the digits of every dimension of a module, as they come to be known.

    %x : [B * L, D]      dims ((B, L), (D,))

It is filled by unification (`unification.py`), and then read.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Operation, Shape, Value, Values
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves, unify

# The factors that a dimension counts by, each once; None where they do not make it up.
Counted = tuple[int, ...] | None


@dataclass(frozen=True)
class Lookup:
    """A gather or scatter. Index vectors lie along dimension `vector` of the indices, one at each
    of `places`, along which `rows` of what is looked up or written run. Number k of a vector names
    a place along dimension `named[k]` of the operand, whose `single` ones are taken one by one.
    """

    named: Sequence[int]
    single: Collection[int]
    vector: int
    places: Sequence[int]
    rows: Sequence[int]


@dataclass(eq=False)
class Link:
    """An op by factors: what each dimension of `operands` and `results` counts by, the factors'
    `sizes`, and which are `reduced` or `blocked`, so that all their indices meet.

    Of the first operand: `steps`, dimensions of which a loop's step takes one place, by the digit
    that counts these; `places`, dimensions of which one place is taken or put, and which one.
    `torn`: digits that were laid side by side and do not align. `alike`: whether all dimensions of
    all operands and results are the same factors, as of what works element by element. `lookup`:
    where rows may be of a ragged axis, by which indices the op takes them.
    """

    operands: list[list[Counted]]
    results: list[list[Counted]]
    sizes: Shape = ()
    reduced: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()
    steps: dict[int, Digit] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    torn: Digits = field(default_factory=list)
    alike: bool = False
    lookup: Lookup | None = None

    @cached_property
    def kept(self) -> list[list[Counted]]:
        """The rows of the results, but for what is blocked: there they lie otherwise than what they
        are made of.
        """
        blocked = self.blocked
        return [
            [None if own and not blocked.isdisjoint(own) else own for own in row]
            for row in self.results
        ]

    def forget(self, dim: int) -> None:
        """Note that nothing is known along a dimension of those that have it."""
        for row in (*self.operands, *self.results):
            if row:
                row[dim] = None


def align(link: Link, one: Digits, two: Digits) -> None:
    """Unify what an op lays side by side, and note where it does not align."""
    if not unify(one, two):
        link.torn += [*one, *two]


def moving(operands: Sequence[Shape], results: Sequence[Shape]) -> Link:
    """A link that has a factor for each dimension, as of an op that keeps their order."""
    return Link([*map(_each, operands)], [*map(_each, results)])


def _each(shape: Shape) -> list[Counted]:
    return [(dim,) for dim in range(len(shape))]


Dims = list[Digits]


@dataclass(frozen=True, eq=False)
class CountedLoop:
    """A loop of known trips. `counters`: the numbers of each, by argument of the body; `digits`:
    for each order in which steps take places, the digit that counts these places.
    """

    trips: int
    counters: dict[Value, npt.NDArray[Any]]
    digits: dict[tuple[int, ...], Digit] = field(default_factory=dict)

    def digit(self, order: tuple[int, ...]) -> Digit:
        """The digit of which step t takes place `order[t]`."""
        return self.digits.setdefault(order, Digit(self.trips))

    @property
    def step(self) -> Value | None:
        """A counter that is 0, 1, 2, ..."""
        steps = np.arange(self.trips)
        return next((v for v, n in self.counters.items() if np.array_equal(n, steps)), None)

    def counter(self) -> tuple[Value, tuple[int, ...]]:
        """A counter that is another number at each step, and these: one that ends the loop is."""
        for value, numbers in self.counters.items():
            if len(np.unique(numbers)) == self.trips:
                return value, tuple(numbers.tolist())
        raise AssertionError("a counted loop has a counter that ends it")


@dataclass(frozen=True, eq=False)
class Piece:
    """Places `low` to `high` of a digit, as a digit of their own."""

    digit: Digit
    of: Digit
    low: int
    high: int


class Taking(NamedTuple):
    """An op, its name, what it takes and what it makes: each is asked of the bindings once."""

    op: Operation
    name: str
    operands: Values
    results: Values


@dataclass
class Structure:
    """`dims`: the digits of each dimension, by value; `links`: of ops, by their first result;
    `loops`: the counted ones, by their bodies; `pieces`: digits that are static parts of others;
    `ops`: of each block, but its terminator; `ragged`: axes of which ids tell whose each row is,
    and the ids, None where rows keep to their places; `lookups`: the ops that may take rows of
    such, in program order; `others`: the dimensions of outputs, and of arguments without examples;
    `owners`: what says whose the places of ragged digits are.
    """

    dims: dict[Value, Dims] = field(default_factory=dict)
    links: dict[Value, Link] = field(default_factory=dict)
    loops: dict[Block, CountedLoop] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    ops: dict[Block, list[Taking]] = field(default_factory=dict)
    ragged: list[tuple[Digit, Value]] | None = None
    lookups: list[Operation] = field(default_factory=list)
    others: list[Digits] = field(default_factory=list)
    owners: dict[Digit, list[Value | Operation]] = field(default_factory=dict)

    def of(self, value: Value) -> Dims:
        """The digits of each dimension of a value, none where it has size 1."""
        found = self.dims.get(value)
        if found is None:
            sizes = mlir.shape(value)
            found = self.dims[value] = [[Digit(size)] if size > 1 else [] for size in sizes]
        return found

    def loop_of(self, op: Operation) -> CountedLoop | None:
        """A loop, if it is a counted one."""
        return self.loops.get(mlir.blocks(op)[1])

    def alike(self, *values: Value) -> Digits:
        """Have values of one shape hold the same along each dimension, in one list where nothing is
        known of them; the digits that do not align.
        """
        dims = self.of(next((v for v in values if v in self.dims), values[0]))
        others = (self.dims.setdefault(v, dims) for v in values)
        pairs = [pair for own in others if own is not dims for pair in zip(dims, own, strict=True)]
        return [d for one, two in pairs if not unify(one, two) for d in (*one, *two)]

    def piece(self, digits: Digits) -> Piece | None:
        """The static part of a digit that a dimension is, if it is one."""
        own = leaves(digits)
        return next((p for p in self.pieces if [p.digit.root] == own), None)

    def piece_of(self, digit: Digit, low: int, high: int) -> Digit:
        """The digit for these places of a digit: the same one each time."""
        for known in self.pieces:
            if (known.of.root, known.low, known.high) == (digit.root, low, high):
                return known.digit
        self.pieces.append(Piece(Digit(high - low), digit, low, high))
        return self.pieces[-1].digit
