"""Axes: a problem as emission sees it: so many examples, and what each value is to them.

The whole module is one problem. The body of a loop whose steps take microbatches is another, of
fewer digits: what a step's values hold is the same, and M stands for B.
"""

from dataclasses import dataclass
from typing import Any

from hlo_surgery.passes.axes.classes import Batched, Class, Mixed, Shared
from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.structure.digits import Digit

ELSEWHERE = Mixed(Reason("it rests on examples of other steps", "", ""), unknown=True)


@dataclass
class Axes:
    """`state`: what is known of the module; `batch`: the digits of the problem's `size` examples;
    `around`: those of loops around, one step of which the problem is. `count`: the number of real
    examples, where some are padding.
    """

    state: State
    batch: tuple[Digit, ...]
    size: int
    around: tuple[Digit, ...] = ()
    count: Value | None = None

    def of(self, value: Value) -> Class:
        """The class of a value."""
        return self._here(value, self.state.of(value))

    def at(self, op: Operation) -> list[Class]:
        """An op's operands' classes as it took them: a sum may be a constant to one op alone."""
        return [self._here(v, c) for v, c in zip(op.operands, self.state.at(op), strict=True)]

    def _here(self, value: Value, known: Class) -> Class:
        """What rests on more than the step at hand is nothing that a step could know."""
        if not self.around or not isinstance(known, Batched):
            return known
        others = {*self.state.digits(value), *known.summed, *known.at}
        return known if others.isdisjoint(self.around) else ELSEWHERE

    def summed(self, op: Operation) -> list[Value]:
        """The operands that the op took as sums over the examples."""
        return [v for v, c in zip(op.operands, self.at(op), strict=True) if self.is_sum(c)]

    def is_sum(self, known: Class) -> bool:
        """Whether a class is that of r + sum of c_b."""
        return isinstance(known, Batched) and bool(known.summed)

    def is_rows(self, known: Class) -> bool:
        """Whether a class is that of the examples' own, each in its place or step."""
        return isinstance(known, Batched) and not known.summed

    def is_shared(self, known: Class) -> bool:
        """Whether a class is that of a constant."""
        return isinstance(known, Shared)

    def assume(self, value: Value, known: Class) -> None:
        """Note the class of a value that is new in the module."""
        self.state.classes[value] = known

    @property
    def data(self) -> dict[Value, Reason]:
        """Where data of the examples was taken as a constant of the batch, by value."""
        return self.state.data

    @property
    def trained(self) -> set[Value]:
        """What parameters reach."""
        return self.state.trained

    @property
    def by_value(self) -> list[dict[Value, Any]]:
        """All that is known by value, for whoever rebuilds the ops that make them."""
        return self.state.by_value
