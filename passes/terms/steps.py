"""Steps: the ops of a gradient slice, each operand with where the examples lie in it.

dot_general %h[b, d], %l[b, f] over b    =>  Step(op, (%h, PerExample(0)), (%l, PerExample(0)))
"""

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.terms.axes import Counters, Labelled


@dataclass(frozen=True)
class Lifted:
    """All examples' versions of a value, along a new first dimension."""


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


@dataclass(frozen=True, eq=False)
class Gathered:
    """The rows of an operand that an example owns, along the digits in which they lie.

    `digits`: the sizes of each dimension's digits; `along`: the numbers, among all digits, of those
    over which the rows are counted. `owners`: [*steps, rows], whose each is. `labels`: who owns
    what, at the steps that `counters` tell. Of the op's operands one alone `is_weighted`: its rows
    count B times, but once where they are nobody's.
    """

    digits: tuple[tuple[int, ...], ...]
    along: tuple[int, ...]
    owners: npt.NDArray[np.int32]
    labels: Labels
    counters: Counters
    is_weighted: bool


@dataclass(frozen=True)
class Rows:
    """An operand with rows of many examples, whole. `owners`: whose each element is, with size 1
    along dimensions that do not tell; `met`: which examples are not to be told apart, [B]. Of
    factors of a product one `is_weighted`.
    """

    owners: Value
    met: Value
    is_weighted: bool


@dataclass(frozen=True)
class Ticket:
    """The number of the example at hand, and whether it met others: of the site `op` with these
    `inputs`.
    """

    op: Operation
    inputs: tuple[tuple[Value, Any], ...]


@dataclass(frozen=True)
class Held:
    """A value as a constant over all examples, in a slice that sums it by examples too."""


LIFTED, HELD = Lifted(), Held()
Axis = PerExample | Lifted | Parted | Held | Labelled | Gathered | Rows | Ticket | None
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
        return any(isinstance(axis, PerExample | Parted) for _, axis in self.inputs)


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
    def row_sites(self) -> tuple[Step, ...]:
        """The ops at which rows of examples are summed, of which each example takes all."""
        return tuple(step for step in self.steps if step.ticket is not None)

    @property
    def tail(self) -> tuple[Step, ...]:
        """The affine ops behind them."""
        sites = (*self.sites, *self.row_sites)
        return tuple(step for step in self.steps if step not in sites)

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
        axes = [axis for _, axis in self.inputs]
        for axis in axes:
            if isinstance(axis, Labelled | Gathered):
                found += [each.value for each in axis.counters if each is not None]
        for axis in axes:
            if isinstance(axis, Rows):
                found += [axis.owners, axis.met]
        return tuple(dict.fromkeys(found))


def is_made(key: Input, made: Container[Value]) -> bool:
    """Whether an input is the result of an earlier step, of which `made` holds all."""
    return key[1] is None and key[0] in made
