"""State: what the analysis knows of a module while it goes through it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hlo_surgery.passes.axes.classes import SHARED, Class
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.structure.digits import Digit, leaves
from hlo_surgery.passes.structure.rules import Link
from hlo_surgery.passes.structure.structure import Dims, Structure

LaidAlong = tuple[tuple[int, Digit], ...]
Laid = tuple[LaidAlong, ...]
Form = tuple[Link, tuple[bool, ...], tuple[Laid, ...], tuple[Digit, ...]]


@dataclass(frozen=True)
class Lies:
    """Where the batch lies in dimensions of these digits: `places`, the dimensions by batch digit;
    `laid`, of each dimension its digits, the minor first, and how many places one step along is.
    """

    dims: Dims
    places: dict[Digit, list[int]]
    laid: Laid
    digits: frozenset[Digit]


@dataclass
class State:
    """`batch`: the digits of the examples, major to minor. `classes`: by value; `taken`: as what an
    op took its operands, by its first result, where that is not their class. `trained`: what
    parameters reach, the rest being data; `held`: what reaches marks of constants alone. `data`:
    where data of several examples was taken as a constant. `scope`: batch digits that loops around
    take step by step. `contribution`: whether all that is mixed counts as a constant. `wanted`:
    digits that turn out to be a batch digit, as where single examples are stacked in their order.
    `made`: forms of ops that were found to make rows of rows.
    """

    structure: Structure
    batch: list[Digit]
    contribution: bool = False
    classes: dict[Value, Class] = field(default_factory=dict[Value, Class])
    taken: dict[Value, list[Class]] = field(default_factory=dict[Value, list[Class]])
    trained: set[Value] = field(default_factory=set[Value])
    held: set[Value] = field(default_factory=set[Value])
    data: dict[Value, Reason] = field(default_factory=dict[Value, Reason])
    scope: list[Digit] = field(default_factory=list[Digit])
    wanted: list[tuple[Digit, list[Digit]]] = field(default_factory=list[tuple[Digit, list[Digit]]])
    offsets: dict[Digit, tuple[Digit, int]] = field(default_factory=dict[Digit, tuple[Digit, int]])
    made: set[Form] = field(default_factory=set[Form])
    # By the identity of lists of digits, which they hold, so that no other list has it.
    _lies: dict[int, Lies] = field(default_factory=dict[int, Lies])
    _along: dict[int, tuple[list[Digit], LaidAlong]] = field(
        default_factory=dict[int, tuple[list[Digit], LaidAlong]]
    )

    def __post_init__(self) -> None:
        self.offsets = {digit: (digit, 0) for digit in self.batch}
        torn = set[Digit]()
        for piece in self.structure.pieces:
            own, whole = piece.digit.root, piece.of.root
            if whole in self.batch:
                # One digit for two parts of the batch: it is not known which examples it counts.
                torn |= {own} & self.offsets.keys()
                self.offsets[own] = whole, piece.low
        self.offsets = {own: part for own, part in self.offsets.items() if own not in torn}

    def of(self, value: Value) -> Class:
        """The class of a value."""
        return self.classes.get(value, SHARED)

    def at(self, op: Operation) -> list[Class]:
        """The classes of an op's operands as it took them."""
        known = self.taken.get(op.results[0]) if len(op.results) else None
        return [self.of(v) for v in op.operands] if known is None else known

    def link(self, op: Operation) -> Link | None:
        """An op by factors; None where nothing is known of it."""
        return self.structure.links.get(op.results[0])

    def batch_digits(self, digits: Iterable[Digit]) -> list[Digit]:
        """The batch digits among some, each as often as it is there."""
        own = (self.offsets.get(digit) for digit in leaves(digits))
        return [part[0] for part in own if part is not None]

    def places(self, value: Value) -> dict[Digit, list[int]]:
        """The dimensions of a value in which each batch digit lies."""
        return self._lie(value).places

    def laid(self, value: Value) -> Laid:
        """Of each dimension its batch digits, and how many places one step along each is."""
        return self._lie(value).laid

    def lie_alike(self, one: Value, *others: Value) -> bool:
        """Whether values of a shape have each batch digit at the same places of a dimension."""
        return all(self.laid(one) == self.laid(other) for other in others)

    def digits(self, value: Value) -> frozenset[Digit]:
        """The batch digits that lie in a value's dimensions."""
        return self._lie(value).digits

    def _lie(self, value: Value) -> Lies:
        dims = self.structure.of(value)
        found = self._lies.get(id(dims))
        if found is None:
            found = self._lies[id(dims)] = self._lies_in(dims)
        return found

    def _lies_in(self, dims: Dims) -> Lies:
        places, laid = dict[Digit, list[int]](), tuple(map(self._laid_along, dims))
        for dim, own in enumerate(laid):
            for _, digit in own:
                places.setdefault(self.offsets[digit][0], []).append(dim)
        return Lies(dims, places, laid, frozenset(places))

    def _laid_along(self, digits: list[Digit]) -> LaidAlong:
        known = self._along.get(id(digits))
        if known is None:
            behind, own = 1, list[tuple[int, Digit]]()
            for each in reversed(leaves(digits)):
                own += [(behind, each)] if each in self.offsets else []
                behind *= each.size
            known = self._along[id(digits)] = digits, tuple(own)
        return known[1]

    @property
    def by_value(self) -> list[dict[Value, Any]]:
        """All that is known by value, for whoever rebuilds the ops that make them."""
        return [self.classes, self.structure.dims]
