"""Axes: what a value of the module is to the examples, in the words of emission.

Owners say of each element whose it is; emission is told where whole examples lie.
"""

from dataclasses import dataclass, field

from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Mixed, Summed
from hlo_surgery.passes.owners.labelling.labels import Labels


@dataclass(frozen=True)
class Shared:
    """No example, or the batch's data taken as a constant: then `data` says which, and where."""

    data: Reason | None = None


@dataclass(frozen=True)
class Counter:
    """A value of a loop's body that is another of these numbers at each step."""

    value: Value
    numbers: tuple[int, ...]


Counters = tuple[Counter | None, ...]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Each element depends on one example at most, its owner, wherever these lie.

    `counters`: of each loop on whose steps the labels depend; else None. Where a product has this
    for an operand, and another that is taken B times, then this one is not: it is no `is_weighted`.
    """

    labels: Labels
    counters: Counters = ()
    is_weighted: bool = True


Class = Shared | Labelled | Summed | Mixed
SHARED = Shared()


@dataclass
class Axes:
    """What is known of a module, for emission.

    `size`: B. `classes`: by value. `trained`: what parameters reach. `data`: where data of the
    examples was mixed and then taken as a batch constant, by value. `taken`: as what an op took its
    operands, by first result, where it may differ from their classes. `count`: the number of real
    examples, where some are padding. `sites`: where ids say whose rows are, of an op that sums
    them, by its first result, the owners of each operand's elements; `met`: which examples were
    found to meet others, [B].
    """

    size: int
    classes: dict[Value, Class] = field(default_factory=dict[Value, Class])
    trained: set[Value] = field(default_factory=set[Value])
    data: dict[Value, Reason] = field(default_factory=dict[Value, Reason])
    taken: dict[Value, tuple[Class, ...]] = field(default_factory=dict[Value, tuple[Class, ...]])
    count: Value | None = None
    sites: dict[Value, tuple[Value | None, ...]] = field(
        default_factory=dict[Value, tuple[Value | None, ...]]
    )
    met: Value | None = None

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
