"""State: what the analysis knows of a module while it goes through it.

Classes: what a value of the module is to the examples.

    Shared     no example reaches it, or only as data of the batch that counts as a constant
    Batched    at index i of its batch digits it depends on example i alone; `summed` digits have
               been summed over: r + sum over them of c_i
    Mixed      neither is shown, and no gradient may be it

The batch is a few digits: (B,), or (M, b) where a microbatch reshape splits it. Of a Batched value
each of them lies in exactly one dimension, is the step of a loop around, is summed over, or is the
one place that `at` says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves
from hlo_surgery.passes.structure.structure import Dims, Link, Structure

NOWHERE: frozenset[Digit] = frozenset()
# Among what data varies along: places that constants gave to examples, as a matrix does that mixes
# them; and what is a product of sums, of which none is more a constant than another.
LAID_OUT, PRODUCT = Digit(0), Digit(0)


@dataclass(frozen=True)
class Shared:
    """No example's. `data`: the data of the batch in it, taken as a constant; `term`: why it may be
    no term of a gradient. `varies`: the batch digits along which such data may differ, from place
    to place or from step to step.
    """

    data: Reason | None = None
    term: Reason | None = None
    varies: frozenset[Digit] = NOWHERE


@dataclass(frozen=True)
class Batched:
    """The examples' own, or sums over them. `site`: the op that first summed; `term`: why the part
    of it that no example reaches may be no term of a gradient. `bare`: no example reaches it at
    all, but it lies along the batch, so that its row b is example b's. `laid_out`: constants gave
    examples places in the sum; `running`: a loop around goes on with it.
    """

    summed: frozenset[Digit] = NOWHERE
    at: Mapping[Digit, int] = field(default_factory=dict[Digit, int])
    site: Operation | None = None
    term: Reason | None = None
    bare: bool = False
    laid_out: bool = False
    running: bool = False


@dataclass(frozen=True)
class Mixed:
    """Examples meet, and not in a sum; or, where `unknown`, in a way that is not understood."""

    reason: Reason
    unknown: bool = False


Class = Shared | Batched | Mixed
Classes = Sequence[Class]
SHARED, ROWS = Shared(), Batched()


def is_sum(known: Class) -> bool:
    """Whether a value is r + sum of c_b."""
    return isinstance(known, Batched) and bool(known.summed)


def is_rows(known: Class) -> bool:
    """Whether a value is the examples' own, summed nowhere."""
    return isinstance(known, Batched) and not known.summed


def is_free(known: Class) -> bool:
    """Whether nothing of any example is in a value."""
    return isinstance(known, Shared) and known.data is None


def joined(one: Class, other: Class, mixed: Mixed) -> Class:
    """The least class that holds for either of two values; `mixed` where none does."""
    match one, other:
        case (Mixed(), _):
            return one
        case (_, Mixed()):
            return other
        case (Shared(), Shared()):
            varies = one.varies | other.varies
            return Shared(one.data or other.data, one.term or other.term, varies)
        case (Shared() as constant, Batched() as rows) | (Batched() as rows, Shared() as constant):
            if constant.data and not rows.summed:
                return mixed
            return replace(rows, term=rows.term or (constant.term if rows.summed else None))
        case (Batched(), Batched()):
            if one.at != other.at:
                return mixed
            summed, term = one.summed | other.summed, one.term or other.term
            site, bare = one.site or other.site, one.bare and other.bare
            laid_out, running = one.laid_out or other.laid_out, one.running or other.running
            return Batched(summed, one.at, site, term, bare, laid_out, running)


def same(one: Class, other: Class) -> bool:
    """Whether two classes claim the same, whatever their reasons."""
    return _claim(one) == _claim(other)


def _claim(known: Class) -> tuple[object, ...]:
    match known:
        case Mixed():
            return ()
        case Shared():
            return known.varies, bool(known.data), bool(known.term)
        case Batched():
            return replace(known, site=None, term=None), bool(known.term)


LaidAlong = tuple[tuple[int, Digit], ...]


@dataclass(frozen=True)
class Lies:
    """Where the batch lies in a value's dimensions: `laid`, of each the batch digits, the minor
    first, and how many places one step along is; `places`, the dimensions by batch digit.
    """

    laid: tuple[LaidAlong, ...]
    places: dict[Digit, list[int]] = field(compare=False)
    digits: frozenset[Digit] = field(compare=False)


@dataclass
class State:
    """`batch`: the digits of the examples, major to minor. `classes`: by value; `taken`: as what an
    op took its operands, by its first result, where that is not their class. `trained`: what
    parameters reach, the rest being data; `held`: what reaches marks of constants alone. `data`:
    where data of several examples was taken as a constant. `scope`: batch digits that loops around
    take step by step. `contribution`: whether all that is mixed counts as a constant. `wanted`:
    digits that turn out to be a batch digit, as where single examples are stacked in their order.
    `owners`: of ragged digits the ids that say whose each place is, or the ops that make it so.
    """

    structure: Structure
    batch: Digits
    contribution: bool = False
    classes: dict[Value, Class] = field(default_factory=dict)
    taken: dict[Value, Classes] = field(default_factory=dict)
    trained: set[Value] = field(default_factory=set)
    held: set[Value] = field(default_factory=set)
    data: dict[Value, Reason] = field(default_factory=dict)
    scope: Digits = field(default_factory=list)
    wanted: list[tuple[Digit, Digits]] = field(default_factory=list)
    offsets: dict[Digit, tuple[Digit, int]] = field(default_factory=dict)
    owners: dict[Digit, list[Value | Operation]] = field(default_factory=dict)
    # By the identity of lists of digits, which they hold, so that no other list has it.
    _lies: dict[int, tuple[Dims, Lies]] = field(default_factory=dict)

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
        for digit, told in self.structure.owners.items() if len(self.batch) == 1 else ():
            self.offsets.setdefault(digit.root, (self.batch[0], 0))
            self.owners.setdefault(digit.root, []).extend(told)

    def of(self, value: Value) -> Class:
        """The class of a value."""
        return self.classes.get(value, SHARED)

    def at(self, op: Operation) -> Classes:
        """The classes of an op's operands as it took them."""
        known = self.taken.get(op.results[0]) if len(op.results) else None
        return [self.of(v) for v in op.operands] if known is None else known

    def link(self, op: Operation) -> Link | None:
        """An op by factors; None where nothing is known of it."""
        return self.structure.links.get(op.results[0])

    def batch_digits(self, digits: Iterable[Digit]) -> Digits:
        """The batch digits among some, each as often as it is there."""
        own = (self.offsets.get(digit) for digit in leaves(digits))
        return [part[0] for part in own if part is not None]

    def places(self, value: Value) -> dict[Digit, list[int]]:
        """The dimensions of a value in which each batch digit lies."""
        return self.lies(value).places

    def digits(self, *values: Value) -> frozenset[Digit]:
        """The batch digits that lie in values' dimensions."""
        return NOWHERE.union(*(self.lies(value).digits for value in values))

    def lie_alike(self, one: Value, *others: Value) -> bool:
        """Whether values of a shape have each batch digit at the same places of a dimension."""
        return all(self.lies(one) == self.lies(other) for other in others)

    def lies(self, value: Value) -> Lies:
        """Where the batch lies in a value's dimensions."""
        dims = self.structure.of(value)
        found = self._lies.get(id(dims))
        if found is None:
            found = self._lies[id(dims)] = dims, self._lies_in(dims)
        return found[1]

    def _lies_in(self, dims: Dims) -> Lies:
        laid = tuple(map(self._laid_along, dims))
        places = dict[Digit, list[int]]()
        for dim, own in enumerate(laid):
            for _, digit in own:
                places.setdefault(self.offsets[digit][0], []).append(dim)
        return Lies(laid, places, frozenset(places))

    def _laid_along(self, digits: Digits) -> LaidAlong:
        own, behind = list[tuple[int, Digit]](), 1
        for each in reversed(leaves(digits)):
            own += [(behind, each)] if each in self.offsets else []
            behind *= each.size
        return tuple(own)

    @property
    def by_value(self) -> list[dict[Value, Any]]:
        """All that is known by value, for whoever rebuilds the ops that make them."""
        return [self.classes, self.structure.dims]
