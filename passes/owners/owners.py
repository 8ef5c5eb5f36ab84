"""Owners: what is known of a module: the class of each value, and notes that rules leave.

    %y = tanh %x        owners.of(%y): its class;  owners.at(op): as what the op took %x

Labels that are alike are one object, so that most comparisons are of identities.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Class, Owned
from hlo_surgery.passes.owners.following.terms import Following
from hlo_surgery.passes.owners.labelling.bounds import Bounds
from hlo_surgery.passes.owners.labelling.digits import canonical, compact
from hlo_surgery.passes.owners.labelling.labels import Labels, Places, nobodys

Choice = tuple[int, npt.NDArray[np.bool_]]
"""Of a select, a dimension, and where along it the first side is taken, [n]."""


@dataclass(frozen=True)
class CountedLoop:
    """A loop that runs a known number of times, its step an axis of all labels inside.

    `counters`: the numbers of each counter, [trips], by argument of the body.
    """

    op: Operation
    trips: int
    counters: dict[Value, Places]


@dataclass(frozen=True)
class Apart:
    """The first op on some of the examples alone, if there is one; the examples of each such op,
    other than one that adds terms up; and data of the batch that some meet alone, by value, with
    why it is refused.
    """

    op: Operation | None = None
    examples: frozenset[frozenset[int]] = frozenset()
    data: dict[Value, Reason] = field(default_factory=dict[Value, Reason])


@dataclass
class Contributions:
    """What is known of a module in which all that is mixed counts as a constant of the batch.

    `placed`: the rows of constants and sums that turned out to run along with the examples'.
    `even`: constants that hold the same in each example's row. `unplaced`: the dimensions
    of a value along which it may hold rows of the examples.
    """

    placed: dict[Value, Labels] = field(default_factory=dict[Value, Labels])
    even: dict[Value, Labels] = field(default_factory=dict[Value, Labels])
    unplaced: dict[Value, frozenset[int]] = field(default_factory=dict[Value, frozenset[int]])


@dataclass
class Owners:
    """What is known of a module.

    `size`: B. `classes`: by value. `trained`: what parameters reach; the rest is data. `held`: what
    reaches marks of constants alone, and counts as data there. `data`: where data of several
    examples was taken as a constant of the batch. `positional`: sums over places of examples that
    no example reaches. `taken`: as what an op took its operands, by its first result, where that is
    not their class. `part_loops`: loops whose steps take parts of the batch, by first result, with
    their trips. `loops`: the counted loops around what is classified now, outermost first.
    `beside`: values that run along with the examples and are not theirs. `moved`: why rows of
    parameters are not known to be whose. `apart`: where examples are taken apart, once asked.
    `stand_ins`: what may be constant instead of some examples', once asked, and where that is
    chosen. `uneven`: sums to which some of the examples bring constants. `grouped`: the places of
    sums of which each element is one over some of the examples. `varying`: what may differ from
    step to step, by the first result of a loop. `merged`: of which elements of nobody have owners,
    as all examples have as many. `handing_on`: loops that carry the examples of a step on into the
    next, by first result. `choices`: what is known of selects, by result. `contributions`: where
    all that is mixed counts as constant, not data alone. `following`: what is known of owners that
    ids give, where some do. `by_element`: whether labels keep what is nobody's apart, where one
    owner for all might do.
    """

    size: int
    contributions: Contributions | None = None
    following: Following | None = None
    by_element: bool = False
    classes: dict[Value, Class] = field(default_factory=dict[Value, Class])
    trained: set[Value] = field(default_factory=set[Value])
    held: set[Value] = field(default_factory=set[Value])
    data: dict[Value, Reason] = field(default_factory=dict[Value, Reason])
    positional: dict[Value, Reason] = field(default_factory=dict[Value, Reason])
    taken: dict[Value, tuple[Class, ...]] = field(default_factory=dict[Value, tuple[Class, ...]])
    part_loops: dict[Value, int] = field(default_factory=dict[Value, int])
    loops: list[CountedLoop] = field(default_factory=list[CountedLoop])
    counted: dict[Value, CountedLoop | None] = field(
        default_factory=dict[Value, CountedLoop | None]
    )
    numbers: dict[Value, Bounds | None] = field(default_factory=dict[Value, Bounds | None])
    choices: dict[Value, Choice | None] = field(default_factory=dict[Value, Choice | None])
    beside: set[Value] = field(default_factory=set[Value])
    moved: Reason | None = None
    apart: Apart | None = None
    stand_ins: dict[Value, Operation] | None = None
    uneven: set[Value] = field(default_factory=set[Value])
    grouped: dict[Value, Labels] = field(default_factory=dict[Value, Labels])
    varying: dict[Value, frozenset[Value]] = field(default_factory=dict[Value, frozenset[Value]])
    handing_on: set[Value] = field(default_factory=set[Value])
    merged: set[Value] = field(default_factory=set[Value])
    interned: dict[object, Labels] = field(default_factory=dict[object, Labels])
    meetings: dict[object, object] = field(default_factory=dict[object, object])
    moved_labels: dict[object, Labels] = field(default_factory=dict[object, Labels])
    canonical: dict[Labels, Labels] = field(default_factory=dict[Labels, Labels])
    shared: dict[tuple[int, ...], Owned] = field(default_factory=dict[tuple[int, ...], Owned])

    @property
    def steps(self) -> int:
        """The number of counted loops around what is classified now."""
        return len(self.loops)

    def of(self, value: Value) -> Class:
        """The class of a value."""
        if value not in self.classes:
            self.classes[value] = self.nobodys(value)
        return self.classes[value]

    def is_trained(self, op: Operation, number: int) -> bool:
        """Whether parameters reach an operand, and may reach a gradient by this op."""
        return op.operands[number] in self.trained and self.held.isdisjoint(op.results)

    def nobodys(self, value: Value) -> Owned:
        """The class of a value that no example reaches."""
        shape = mlir.shape(value)
        if shape not in self.shared:
            self.shared[shape] = Owned(nobodys(shape))
        return self.shared[shape]

    def at(self, op: Operation) -> list[Class]:
        """The classes of an op's operands as the op took them."""
        taken = self.taken.get(op.results[0]) if len(op.results) else None
        return [self.of(v) for v in op.operands] if taken is None else list(taken)

    def kept(self, labels: Labels) -> Labels:
        """Labels as they are kept: in canonical form, the one object for equal ones."""
        labels = self.intern(labels)
        if labels not in self.canonical:
            form = compact(labels) if self.by_element else canonical(labels, self.size)
            self.canonical[labels] = self.intern(form)
        return self.canonical[labels]

    def remembered(self, key: object, made: Callable[[], Labels]) -> Labels:
        """Labels that were made before of the same: a module has few kinds of moves."""
        if key not in self.moved_labels:
            self.moved_labels[key] = self.intern(made())
        return self.moved_labels[key]

    def intern(self, labels: Labels) -> Labels:
        """The one object for equal labels, so that most comparisons are of identities."""
        owners = labels.owners
        return self.interned.setdefault((labels.digits, owners.shape, owners.tobytes()), labels)
