"""Steps: the ops of a gradient slice, each operand with where the examples lie in it.

dot_general %h[b, d], %l[b, f] over b    =>  Step(op, (%h, PerExample(0)), (%l, PerExample(0)))
"""

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.mlir import Operation, Value


@dataclass(frozen=True)
class Lifted:
    """All examples' versions of a value, along a new first dimension."""


@dataclass(frozen=True)
class Place:
    """How an operand has a digit of the batch, of some `size`: `axis`, places `first` and on of a
    dimension; `step`, a value of a loop's body and its numbers, and `table`, the place at each of
    these; `at`, one place alone. Without any of these it is the same for all.
    """

    size: int
    axis: PerExample | None = None
    first: int = 0
    length: int = 0
    step: Value | None = None
    numbers: tuple[int, ...] = ()
    table: tuple[int, ...] = ()
    at: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether a dimension has all places."""
        return self.axis is not None and self.length == self.size


@dataclass(frozen=True)
class Split:
    """Rows of an operand, in whatever dimensions, steps and static parts the batch's digits lie.

    `places`: of each digit. `spread`: digits along which an example's row stays in its place, among
    zeros. `is_site`: whether the op sums rows, so that what it makes is taken B times; else the
    rows themselves are.
    """

    places: tuple[Place, ...]
    spread: frozenset[int]
    is_site: bool


@dataclass(frozen=True)
class Held:
    """A value as a constant over all examples, in a slice that sums it by examples too."""


LIFTED, HELD = Lifted(), Held()
Axis = PerExample | Lifted | Split | Held | None
Input = tuple[Value, Axis]


def holds_all(axis: Axis) -> bool:
    """Whether all examples that a site sums lie along dimensions of the operand."""
    if isinstance(axis, Split):
        return axis.is_site and all(place.is_whole for place in axis.places)
    return isinstance(axis, PerExample)


@dataclass(frozen=True)
class Step:
    """One op of a slice; each operand with its example axis, None where all see it whole."""

    op: Operation
    inputs: tuple[Input, ...]

    @property
    def is_site(self) -> bool:
        """Whether examples are summed here."""
        axes = [axis for _, axis in self.inputs]
        split = any(isinstance(axis, Split) and axis.is_site for axis in axes)
        return split or any(isinstance(axis, PerExample) for axis in axes)


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

    @cached_property
    def made(self) -> frozenset[Value]:
        """What the steps make."""
        return frozenset(result for step in self.steps for result in step.op.results)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """What the slice takes from outside it."""
        asked = [key for step in self.steps for key in step.inputs] if self.steps else [self.output]
        return tuple(dict.fromkeys(key for key in asked if not is_made(key, self.made)))

    @property
    def values(self) -> tuple[Value, ...]:
        """The values of the module that the inputs are made of."""
        found = [value for value, _ in self.inputs]
        places = [p for _, axis in self.inputs if isinstance(axis, Split) for p in axis.places]
        found += [place.step for place in places if place.step is not None]
        return tuple(dict.fromkeys(found))


def is_made(key: Input, made: Container[Value]) -> bool:
    """Whether an input is the result of an earlier step, of which `made` holds all."""
    return key[1] is None and key[0] in made
