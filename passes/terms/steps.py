"""Steps: the ops of a gradient slice, each operand with where the examples lie in it.

dot_general %h[b, d], %l[b, f] over b    =>  Step(op, (%h, PerExample(0)), (%l, PerExample(0)))

Contracted dims: the dimensions along which an op sums an operand, and those that stay.

dot_general %h[g, t, d], %l[g, t, f]    =>    of both: g shared, t summed, d and f stay
reduce %l[t, f]                         =>    of operand 0: t summed; its other factor is ones
scatter %u[t, d] at %i[t]               =>    of operand 2: t summed; indices pick rows for it
convolution %x, %l[t, f]                =>    of operand 1: t summed; beside it patches of %x

Axes: a problem as emission sees it: so many examples, and what each value is to them.

The whole module is one problem. The body of a loop whose steps take microbatches is another, of
fewer digits: what a step's values hold is the same, and M stands for B.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jax import Array

from hlo_surgery.passes.axes.state import (
    Batched,
    Class,
    Classes,
    Mixed,
    State,
    is_sum,
)
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal
from hlo_surgery.passes.ir.mlir import Operation, Value, Values
from hlo_surgery.passes.ir.traits import convolution_numbers, dot_numbers, integers, scatter_numbers
from hlo_surgery.passes.structure.digits import Digit

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Contracted:
    """An operand of an op that sums products: its dimensions of this `shape`, by what they do.

    `batch`: the result has them once for both operands; `summed`: in the order of the op; `free`:
    the result has them for this operand.
    """

    shape: Dims
    batch: Dims
    summed: Dims
    free: Dims

    @property
    def positions(self) -> int:
        """How many terms are summed."""
        return math.prod(self.shape[d] for d in self.summed)

    @property
    def elements(self) -> int:
        """How many elements each term has."""
        return math.prod(self.shape[d] for d in (*self.batch, *self.free))


def contracted(op: Operation) -> dict[int, Contracted]:
    """What an op sums, by operand number; no operand of an op that is none of the above."""
    match op.name:
        case "stablehlo.dot_general":
            numbers = dot_numbers(op)
            left = numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions
            right = numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions
            return {0: _operand(op, 0, *left), 1: _operand(op, 1, *right)}
        case "stablehlo.reduce":
            return {0: _operand(op, 0, (), integers(op, "dimensions"))}
        case "stablehlo.scatter":
            window = list(scatter_numbers(op).update_window_dims)
            rank = len(mlir.shape(op.operands[2]))
            return {2: _operand(op, 2, (), [d for d in range(rank) if d not in window])}
        case "stablehlo.convolution":
            kernel = convolution_numbers(op)
            positions = kernel.kernel_input_feature_dimension, *kernel.kernel_spatial_dimensions
            return {1: _operand(op, 1, (), positions)}
        case _:
            return {}


def _operand(op: Operation, number: int, batch: Sequence[int], summed: Sequence[int]) -> Contracted:
    shape = mlir.shape(op.operands[number])
    taken = {*batch, *summed}
    free = tuple(d for d in range(len(shape)) if d not in taken)
    return Contracted(shape, tuple(batch), tuple(summed), free)


NOT_TOLD = "nothing tells whose the rows of an axis are that reaches a gradient"
NOT_TOLD_HELP = "say it by segments, for an argument that has this axis"
ELSEWHERE = Mixed(Reason("it rests on examples of other steps", "", ""), unknown=True)


@dataclass
class Axes:
    """`state`: what is known of the module; `batch`: the digits of the problem's `size` examples;
    `around`: those of loops around, one step of which the problem is. `count`: the number of real
    examples, where some are padding. `lifted`: all examples' versions of sums, where these are had;
    `owners`: of ragged digits, whose each place is.
    """

    state: State
    batch: tuple[Digit, ...]
    size: int
    around: tuple[Digit, ...] = ()
    count: Value | None = None
    lifted: dict[Value, Value] = field(default_factory=dict[Value, Value])
    owners: dict[Digit, Value] = field(default_factory=dict[Digit, Value])

    def owner(self, digit: Digit) -> Value | None:
        """Whose each place of a digit is, where ids tell it. Raises Refusal where nothing does."""
        if digit not in self.state.owners or digit in self.batch:
            return None
        if digit not in self.owners:
            raise Refusal(Reason(NOT_TOLD, "func.func", "module", NOT_TOLD_HELP))
        return self.owners[digit]

    def of(self, value: Value) -> Class:
        """The class of a value."""
        return self._here(value, self.state.of(value))

    def at(self, op: Operation) -> Classes:
        """An op's operands' classes as it took them: a sum may be a constant to one op alone."""
        return [self._here(v, c) for v, c in zip(op.operands, self.state.at(op), strict=True)]

    def _here(self, value: Value, known: Class) -> Class:
        """What rests on more than the step at hand is nothing that a step could know."""
        if not self.around or not isinstance(known, Batched):
            return known
        others = {*self.state.digits(value), *known.summed, *known.at}
        return known if others.isdisjoint(self.around) else ELSEWHERE

    def summed(self, value: Value) -> Values:
        """What was taken as sums over the examples by the op that makes a value; of what loops and
        branches make, or are given, nothing.
        """
        op = mlir.defining_operation(value)
        if op is None or op.name in mlir.CONTROL_FLOW:
            return []
        return [v for v, c in zip(op.operands, self.at(op), strict=True) if is_sum(c)]

    def sums(self, value: Value) -> bool:
        """Whether a value is r + sum of c_b."""
        return is_sum(self.of(value))

    @property
    def by_value(self) -> list[dict[Value, Any] | set[Value]]:
        """All that is known by value, for whoever rebuilds the ops that make them."""
        return [*self.state.by_value, self.state.trained, self.lifted]

    @property
    def data(self) -> dict[Value, Reason]:
        """Where data of the examples was taken as a constant of the batch, by value."""
        return self.state.data


@dataclass(frozen=True)
class Lifted:
    """All examples' versions of a value, along a new first dimension."""


@dataclass(frozen=True)
class Place:
    """How an operand has a digit of the batch, of some `size`: `axis`, places `first` and on of a
    dimension; `step`, a value of a loop's body and its numbers, and `table`, the place at each of
    these; `at`, one place alone. Without any of these it is the same for all. `owner`: of a ragged
    dimension, whose each of its `length` places is.
    """

    size: int
    axis: PerExample | None = None
    first: int = 0
    length: int = 0
    step: Value | None = None
    numbers: tuple[int, ...] = ()
    table: tuple[int, ...] = ()
    at: int | None = None
    owner: Value | None = None

    @property
    def along(self) -> int:
        """How long the dimension is."""
        return self.axis.before * self.length * self.axis.after if self.axis else 1

    @property
    def is_whole(self) -> bool:
        """Whether a dimension has all places."""
        return self.axis is not None and self.length == self.size and self.owner is None


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


@dataclass(frozen=True)
class Rows:
    """Rows of a ragged axis in the order of their owners, `width` of which a site takes at once."""

    place: Place
    width: int


@dataclass(frozen=True)
class Ends:
    """Of owners of `length` rows from `first` on: between which rows, in their order, those of each
    of `size` examples are, [B, 2].
    """

    size: int
    first: int
    length: int


LIFTED, HELD = Lifted(), Held()
Axis = PerExample | Lifted | Split | Held | Rows | Ends | None
Input = tuple[Value, Axis]
# Arrays of values of the module, and of what a slice takes.
Known = Mapping[Value, Array]
Given = Mapping[Input, Array]


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
        return split or any(isinstance(axis, PerExample | Rows) for axis in axes)


def is_ragged(step: Step) -> bool:
    """Whether ids tell whose the rows of an operand are."""
    places = (p for _, axis in step.inputs if isinstance(axis, Split) for p in axis.places)
    return any(place.owner is not None for place in places)


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


def is_made(key: Input, made: Container[Value]) -> bool:
    """Whether an input is the result of an earlier step, of which `made` holds all."""
    return key[1] is None and key[0] in made
