"""Structure: the digits of every dimension of a module, as they come to be known.

    %x : [B * L, D]      dims ((B, L), (D,))

It is filled by unification (`unification.py`), and then read.

Rules: which dimensions of an op's operands and results share an index (a factor), and what sums.

    dot_general : ([i, m], [m, k]) -> ([i, k])      i and k kept, m reduced

An element of the result at index k of a factor reads operands at k alone. Shardy has such a rule
for every op that XLA can partition; here stand those that differ from Shardy's, or that it lacks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.dataflow.kernels import (
    ATTRIBUTE,
    CUSTOM_CALL,
    Rule,
    attention_rule,
    declared_rule,
    rule_along,
)
from hlo_surgery.passes.dataflow.mosaic_kernels import kernel_rule
from hlo_surgery.passes.dataflow.numbers import Numbers, Told
from hlo_surgery.passes.ir import mlir, traits
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.structure.digits import Digit, leaves, unify

Shape = tuple[int, ...]
Shapes = tuple[tuple[Shape, ...], tuple[Shape, ...]]
# Ops of which a rule's attribute does not say all: where they move, and whose indices count.
BY_MORE = frozenset(
    f"stablehlo.{name}" for name in ("convolution", "custom_call", "gather", "pad", "scatter")
)
# The factors that a dimension counts by, each once; None where they do not make it up.
Counted = tuple[int, ...] | None


@dataclass(eq=False)
class Link:
    """An op by factors: what each dimension of `operands` and `results` counts by, the factors'
    `sizes`, and which are `reduced` or `blocked`, so that all their indices meet.

    Of the first operand: `steps`, dimensions of which a loop's step takes one place, by the digit
    that counts these; `places`, dimensions of which one place is taken or put, and which one.
    `torn`: digits that were laid side by side and do not align. `alike`: whether all dimensions of
    all operands and results are the same factors, as of what works element by element.
    """

    operands: list[list[Counted]]
    results: list[list[Counted]]
    sizes: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()
    steps: dict[int, Digit] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    torn: list[Digit] = field(default_factory=list)
    alike: bool = False

    def forget(self, dim: int) -> None:
        """Note that nothing is known along a dimension of those that have it."""
        for row in (*self.operands, *self.results):
            if row:
                row[dim] = None


def align(link: Link, one: list[Digit], two: list[Digit]) -> None:
    """Unify what an op lays side by side, and note where it does not align."""
    if not unify(one, two):
        link.torn += [*one, *two]


def moving(operands: Sequence[Shape], results: Sequence[Shape]) -> Link:
    """A link that has a factor for each dimension, as of an op that keeps their order."""
    return Link([*map(_each, operands)], [*map(_each, results)])


def _each(shape: Shape) -> list[Counted]:
    return [(dim,) for dim in range(len(shape))]


def linked(op: Operation, shapes: Shapes, known: dict[object, Link | None]) -> Link | None:
    """An op by the factors of its rule; None where it has none. `shapes`: of operands and results;
    `known`: links of before, as a module has few kinds of ops.
    """
    attributes = op.attributes
    key = None
    if ATTRIBUTE in attributes and op.name not in BY_MORE:
        key = op.name, attributes[ATTRIBUTE], shapes
        if key in known:
            return known[key]
    rule = rule_of(op)
    link = None if rule is None else _by_rule(rule, shapes)
    if key:
        known[key] = link
    return link


def _by_rule(rule: Rule, shapes: Shapes) -> Link:
    rows = [
        [
            _counted(zip(factors, shape, strict=True), rule)
            for factors, shape in zip(*pair, strict=True)
        ]
        for pair in zip((rule.operands, rule.results), shapes, strict=True)
    ]
    first, *others = [*rows[0], *rows[1]]
    single = all(own is not None and len(own) == 1 for own in first)
    alike = single and not rule.blocked and all(row == first for row in others)
    return Link(rows[0], rows[1], rule.sizes, rule.reduced, rule.blocked, alike=alike)


def _counted(dims: Iterable[tuple[tuple[int, ...], int]], rule: Rule) -> list[Counted]:
    """What each dimension counts by. Rules describe placement, so that each is checked: factors
    must make up the dimension exactly, and each may count once.
    """
    found, taken = list[Counted](), set[int]()
    for own, size in dims:
        exact = math.prod([rule.sizes[f] for f in own]) == size
        once = len(set(own)) == len(own) and taken.isdisjoint(own)
        found.append(own if exact and once else None)
        taken.update(own if exact and once else ())
    return found


def rule_of(op: Operation) -> Rule | None:
    """The rule of an op; None where nothing is known. What a custom call's author wrote is no rule:
    it describes placement, and not independence.
    """
    if op.name != CUSTOM_CALL:
        return kernels.rule_of(op)
    declared = declared_rule(op)
    if declared is None and traits.is_batched_call(op):
        return _matrix_rule(op)
    return declared or kernel_rule(op) or attention_rule(op) or kernels.rule_of(op)


def _matrix_rule(op: Operation) -> Rule:
    """A LAPACK call works matrix by matrix: dimensions before the matrices are kept, others
    blocked. A solve with a single matrix works column by column (from the left) or row by row.
    """
    shapes = [mlir.shape(v) for v in (*op.operands, *op.results)]
    lead = max(map(len, shapes)) - traits.own_dimensions(op)
    along = [tuple(d if d < len(s) else None for s in shapes) for d in range(lead)]
    from_left = traits.solves_from_left(op) if lead == 0 else None
    if from_left is not None:
        # Of right-hand sides and results the dimension that is no equation's is kept.
        free, sides = int(from_left), (1, len(op.operands))
        along.append(tuple(free if n in sides else None for n in range(len(shapes))))
    return rule_along(op, along)


Dims = list[list[Digit]]


@dataclass(frozen=True, eq=False)
class CountedLoop:
    """A loop of known trips. `counters`: the numbers of each, by argument of the body; `digits`:
    for each order in which steps take places, the digit that counts these places.
    """

    op: Operation
    trips: int
    counters: dict[Value, Numbers]
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


@dataclass
class Structure:
    """`dims`: the digits of each dimension, by value; `links`: of ops, by their first result, and
    `kinds`: those of all ops that are alike; `loops`: the counted ones, by their bodies; `pieces`:
    digits that are static parts of others; `around`: the counted loops around what is visited now,
    outermost first.
    """

    dims: dict[Value, Dims] = field(default_factory=dict)
    links: dict[Value, Link] = field(default_factory=dict)
    kinds: dict[object, Link | None] = field(default_factory=dict)
    loops: dict[Block, CountedLoop] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    around: list[CountedLoop] = field(default_factory=list)

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
