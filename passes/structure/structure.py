"""Structure: the digits of every dimension of a module, as they come to be known.

    %x : [B * L, D]      dims ((B, L), (D,))

It is filled by unification (`unification.py`), and then read.
"""

from dataclasses import dataclass, field

import numpy as np

from hlo_surgery.passes.dataflow.numbers import Numbers, Told
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.structure.digits import Digit, leaves, unify
from hlo_surgery.passes.structure.rules import Link

Dims = list[list[Digit]]


@dataclass(frozen=True, eq=False)
class CountedLoop:
    """A loop of known trips. `counters`: the numbers of each, by argument of the body; `digits`:
    for each order in which steps take places, the digit that counts these places.
    """

    op: Operation
    trips: int
    counters: dict[Value, Numbers]
    digits: dict[tuple[int, ...], Digit] = field(default_factory=dict[tuple[int, ...], Digit])

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


@dataclass
class Structure:
    """`dims`: the digits of each dimension, by value; `links`: of ops, by their first result, and
    `kinds`: those of all ops that are alike; `loops`: the counted ones, by their bodies; `pieces`:
    digits that are static parts of others; `around`: the counted loops around what is visited now,
    outermost first.
    """

    shapes: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])
    dims: dict[Value, Dims] = field(default_factory=dict[Value, Dims])
    links: dict[Value, Link] = field(default_factory=dict[Value, Link])
    kinds: dict[object, Link | None] = field(default_factory=dict[object, Link | None])
    loops: dict[Block, CountedLoop] = field(default_factory=dict[Block, CountedLoop])
    pieces: list[Piece] = field(default_factory=list[Piece])
    told: Told = field(default_factory=Told)
    around: list[CountedLoop] = field(default_factory=list[CountedLoop])

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of a value, looked up once."""
        found = self.shapes.get(value)
        if found is None:
            found = self.shapes[value] = mlir.shape(value)
        return found

    def of(self, value: Value) -> Dims:
        """The digits of each dimension of a value, none where it has size 1."""
        found = self.dims.get(value)
        if found is None:
            shape = self.shape(value)
            found = self.dims[value] = [[Digit(size)] if size > 1 else [] for size in shape]
        return found

    def loop_of(self, op: Operation) -> CountedLoop | None:
        """A loop, if it is a counted one."""
        return self.loops.get(op.regions[1].blocks[0])

    def alike(self, one: Value, *others: Value) -> None:
        """Have values of one shape hold the same along each dimension."""
        own = self.of(one)
        for other in others:
            for mine, its in zip(own, self.dims.setdefault(other, own), strict=True):
                unify(mine, its)

    def piece(self, digits: list[Digit]) -> Piece | None:
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
