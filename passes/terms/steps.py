"""Steps: the ops of a gradient slice, each operand with where the examples lie in it.

dot_general %h[b, d], %l[b, f] over b    =>  Step(op, (%h, PerExample(0)), (%l, PerExample(0)))
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.terms.axes import PerExample
from hlo_surgery.passes.terms.kept_examples import Gathered, Kept
from hlo_surgery.passes.terms.rows import Rows, Ticket


@dataclass(frozen=True)
class Lifted:
    """All examples' versions of a value, along a new first dimension."""


@dataclass(frozen=True)
class Placed:
    """The examples of one part, put at their places among all B, where the others are zero.

    `index`: the part's number, a scalar of the module; `axis`, `count`, `major` as in `Local`.
    """

    index: Value
    axis: PerExample | None
    count: int
    major: bool


@dataclass(frozen=True)
class Parted:
    """A batch's examples split over two dimensions, of which an operand may hold only one.

    `kept`: the site sums over the other dimension alone; each example then has its place among
    zeros along this one.
    """

    major: PerExample | None
    minor: PerExample | None
    parts: int
    kept: Literal["major", "minor", ""]


@dataclass(frozen=True)
class Held:
    """A value as a constant over all examples, in a slice that sums it by examples too."""


LIFTED, HELD = Lifted(), Held()
Axis = PerExample | Lifted | Placed | Parted | Held | Kept | Gathered | Rows | Ticket | None
Input = tuple[Value, Axis]


@dataclass(frozen=True)
class Step:
    """One op of a slice; each operand with its example axis, None where all see it whole."""

    op: Operation
    inputs: tuple[Input, ...]

    @property
    def ticket(self) -> Input | None:
        """What tells a site of rows which example is at hand."""
        met = next((axis.met for _, axis in self.inputs if isinstance(axis, Rows)), None)
        return None if met is None else (met, Ticket(self.op, self.inputs))

    @property
    def is_site(self) -> bool:
        """Whether examples are summed here."""
        return any(
            isinstance(axis, PerExample | Parted) or _is_sliced(axis) for _, axis in self.inputs
        )


@dataclass(frozen=True)
class GradientSlice:
    """All between the examples and one gradient output, in order; `output` says where it ends."""

    output: Input
    steps: tuple[Step, ...]

    @property
    def value(self) -> Value:
        """The gradient."""
        return self.output[0]

    @property
    def sites(self) -> tuple[Step, ...]:
        """The ops at which examples are summed."""
        return tuple(step for step in self.steps if step.is_site)

    @property
    def tail(self) -> tuple[Step, ...]:
        """The affine ops behind them."""
        return tuple(step for step in self.steps if not step.is_site)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What the slice takes from outside it."""
        made = {result for step in self.steps for result in step.op.results}
        asked = [key for step in self.steps for key in step.inputs] if self.steps else [self.output]
        return tuple(dict.fromkeys(key for key in asked if not is_made(key, made)))

    @property
    def values(self) -> tuple[Value, ...]:
        """The values of the module that the inputs are made of."""
        indices = [axis.index for _, axis in self.inputs if isinstance(axis, Placed)]
        kept = [axis for _, axis in self.inputs if isinstance(axis, Kept)]
        indices += [counter for axis in kept for counter in axis.counters if counter is not None]
        rows = [axis for _, axis in self.inputs if isinstance(axis, Rows)]
        indices += [value for axis in rows for value in (axis.owners, axis.met)]
        return tuple(dict.fromkeys([*(value for value, _ in self.inputs), *indices]))


def is_made(key: Input, made: Container[Value]) -> bool:
    """Whether an input is the result of an earlier step, of which `made` holds all."""
    return key[1] is None and key[0] in made


def _is_sliced(axis: Axis) -> bool:
    return isinstance(axis, Placed) and axis.axis is not None
