"""What a value of the module is to the examples: the four classes, and what is known beside."""

from dataclasses import dataclass, field

from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.labels import Labels


@dataclass(frozen=True)
class Shared:
    """No example, or the batch's data taken as a constant: then `data` says which, and where."""

    data: Reason | None = None


@dataclass(frozen=True)
class PerExample:
    """Slice b depends on example b alone. Dimension `dim` has size before * B * after,
    row-major.
    """

    dim: int
    before: int = 1
    after: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether the dimension holds nothing but the examples."""
        return self.before == self.after == 1


@dataclass(frozen=True)
class Crossed:
    """Along each of several dimensions row b is example b's place, as in a matrix of similarities.

    In contributions alone: each entry is a constant of the batch, and belongs to one example along
    each dimension.
    """

    places: tuple[PerExample, ...]


@dataclass(frozen=True)
class Split:
    """The example axis split over two dimensions: example b lies at (b // minor, b % minor).

    `major` holds `parts` examples' places, `minor` the rest, each along a dimension of its own.
    """

    major: PerExample
    minor: PerExample
    parts: int


@dataclass(frozen=True)
class Local:
    """In a loop over parts of the batch, in the order of `order`: what belongs to the part.

    `count` examples lie along `axis`; `axis` is None where the part is a single example. `major`:
    whether the loop goes over the major of the two dimensions. `index` is the part's number as a
    value of the loop's body.
    """

    axis: PerExample | None
    count: int
    major: bool
    order: tuple[int, ...]
    loop: Value
    index: Value = field(compare=False)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Each element depends on one example at most, its owner, wherever these lie.

    `counters`: the number of the step in each loop on whose steps the labels depend; else None.
    """

    labels: Labels
    counters: tuple[Value | None, ...] = ()


@dataclass(frozen=True)
class Summed:
    """r + sum of c_b, with c_b depending on example b alone. `site` is the op that summed first.

    `data` is set where r holds data of the whole batch: r then belongs to no example.
    """

    site: Operation
    data: Reason | None = None


@dataclass(frozen=True)
class Mixed:
    """The examples met in a way that is no sum, or, if `unknown`, that is not understood."""

    reason: Reason
    unknown: bool = False


Class = Shared | PerExample | Crossed | Split | Local | Labelled | Summed | Mixed
SHARED = Shared()


@dataclass
class Axes:
    """What is known of a module: batch size, values' classes, and what parameters reach.

    `contribution`: whether whatever is mixed counts as a constant of the batch, not only data.
    `data`: where data of the examples was mixed and then taken as a batch constant, by value.
    `part_loops`: loops over parts of the batch, by their first result, with the number of parts.
    `parting`: loops over single examples, by first result, with the order in which they take them.
    `positional`: sums over positions of the examples that no example reaches, by value.
    `aligned`: Shared values that run along with the examples, row by row.
    `moved`: why rows that parameters reach were not followed to where they come from.
    `varying`: what may differ from step to step, by a loop's first result; kept once it is found.
    `count`: the number of real examples, where some are padding.
    `taken`: as what an op took its operands, by first result, where it may differ from their
    classes.

    Of contributions alone:
    `placed`: where rows of values turned out to run along with the examples'.
    `even`: constants that hold the same in each example's row, with the axis of the rows.
    `unplaced`: values that may hold rows of the examples along dimensions where that is not known.
    `lost`: values in which such rows were summed, so that their shares in a gradient are not known.
    """

    size: int
    contribution: bool = False
    classes: dict[Value, Class] = field(default_factory=dict[Value, Class])
    trained: set[Value] = field(default_factory=set[Value])
    data: dict[Value, Reason] = field(default_factory=dict[Value, Reason])
    positional: dict[Value, Reason] = field(default_factory=dict[Value, Reason])
    count: Value | None = None
    part_loops: dict[Value, int] = field(default_factory=dict[Value, int])
    parting: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])
    aligned: set[Value] = field(default_factory=set[Value])
    moved: Reason | None = None
    varying: dict[Value, frozenset[Value]] = field(default_factory=dict[Value, frozenset[Value]])
    taken: dict[Value, tuple[Class, ...]] = field(default_factory=dict[Value, tuple[Class, ...]])
    placed: dict[Value, PerExample] = field(default_factory=dict[Value, PerExample])
    even: dict[Value, PerExample] = field(default_factory=dict[Value, PerExample])
    unplaced: set[Value] = field(default_factory=set[Value])
    lost: dict[Value, Reason] = field(default_factory=dict[Value, Reason])

    def of(self, value: Value) -> Class:
        """The class of a value."""
        return self.classes.get(value, SHARED)

    def at(self, op: Operation) -> list[Class]:
        """An op's operands' classes as it took them: a sum may be a constant to one op alone.

        Whoever looks at the examples through an op must see these.
        """
        known = self.taken.get(op.results[0]) if len(op.results) else None
        return (
            [self.of(v) for v in op.operands] if known is None else list(known[: len(op.operands)])
        )

    def summed(self, op: Operation) -> list[Value]:
        """The operands that the op took as sums over the examples."""
        return [v for v, c in zip(op.operands, self.at(op), strict=True) if isinstance(c, Summed)]
