"""Gradient slices: given a gradient, the ops that sum examples (sites), affine ones behind (tail).

%m = dot_general %h, %l   contracts the examples  =>  site
%t = transpose %m                                 =>  tail
return %t
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, Literal, cast

from hlo_surgery.passes.example_axes import sharding_rules, split_batches
from hlo_surgery.passes.example_axes.alignment.positions import common_factor
from hlo_surgery.passes.example_axes.lattice import (
    Axes,
    Class,
    Labelled,
    Local,
    PerExample,
    Shared,
    Split,
    Summed,
)
from hlo_surgery.passes.example_axes.reasons import mixed
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.ir.linearity import initial_operands
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.digits import regrouped
from hlo_surgery.passes.owners.labelling.labels import nobodys, own_rows
from hlo_surgery.passes.terms.kept_examples import Gathered, Kept, kept_operands

SCATTERED = "the examples lie in a way that no strategy can take apart yet"


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
Axis = PerExample | Lifted | Placed | Parted | Held | Kept | Gathered | None
Input = tuple[Value, Axis]


@dataclass(frozen=True)
class Step:
    """One op of a slice; each operand with its example axis, None where all see it whole."""

    op: Operation
    inputs: tuple[Input, ...]

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
        return tuple(dict.fromkeys([*(value for value, _ in self.inputs), *indices]))


def is_made(key: Input, made: Container[Value]) -> bool:
    """Whether an input is the result of an earlier step, of which `made` holds all."""
    return key[1] is None and key[0] in made


def gradient_slice(axes: Axes, output: Value, lifted: Mapping[Value, Value]) -> GradientSlice:
    """The slice of an output that is Summed, or Shared (then it is empty).

    It ends at sites and at values that are lifted already: by `lifted`, which holds their lifted
    versions.
    """
    found: set[Value] = set()
    pending = [output]
    while pending:
        value = behind_barriers(pending.pop())
        if value in found or value in lifted or not isinstance(axes.of(value), Summed):
            continue
        found.add(value)
        pending += axes.summed(_producer(value))
    ordered = _in_program_order(found)
    return GradientSlice(
        _input(output, None, lifted), tuple(_step(axes, op, lifted, found) for op in ordered)
    )


def behind_barriers(value: Value) -> Value:
    """The value itself, behind optimization barriers, which pass on each operand as it is."""
    op = mlir.defining_operation(value)
    while op is not None and op.name == "stablehlo.optimization_barrier":
        value = op.operands[mlir.results(op).index(value)]
        op = mlir.defining_operation(value)
    return value


def _producer(value: Value) -> Operation:
    op = mlir.defining_operation(value)
    assert op is not None
    assert op.name not in mlir.CONTROL_FLOW
    return op


def _in_program_order(made: set[Value]) -> list[Operation]:
    ops = {op.results[0]: op for op in map(_producer, made)}.values()
    return sorted(ops, key=cmp_to_key(_before))


def _before(one: Operation, other: Operation) -> int:
    return -1 if cast(Any, one).is_before_in_block(other) else 1


def _input(value: Value, axis: Axis, lifted: Mapping[Value, Value]) -> Input:
    source = behind_barriers(value)
    return (lifted[source], LIFTED) if source in lifted else (source, axis)


def _operand(
    value: Value, known: Class, lifted: Mapping[Value, Value], made: Container[Value]
) -> Input:
    """An operand without an example axis: a sum that belongs to the slice, or a constant."""
    if isinstance(known, Summed):
        return _input(value, None, lifted)
    source = behind_barriers(value)
    return source, HELD if source in made or source in lifted else None


def _example_or_input(
    value: Value, known: Class, lifted: Mapping[Value, Value], made: Container[Value]
) -> Input:
    if isinstance(known, Local):
        return value, Placed(known.index, None, 1, known.major)
    return _operand(value, known, lifted, made)


def gradient_step(axes: Axes, op: Operation) -> Step:
    """One op that sums over the examples, by itself."""
    return _step(axes, op, {}, ())


def _is_sliced(axis: Axis) -> bool:
    return isinstance(axis, Placed) and axis.axis is not None


def _step(axes: Axes, op: Operation, lifted: Mapping[Value, Value], made: Container[Value]) -> Step:
    known = axes.at(op)
    local = next((c for c in known if isinstance(c, Local)), None)
    if local is not None and local.axis is None:
        own = (
            _example_or_input(v, c, lifted, made) for v, c in zip(op.operands, known, strict=True)
        )
        return Step(op, tuple(own))
    if any(isinstance(c, Split) for c in known):
        return _parted_step(axes, op, known)
    if any(isinstance(c, Labelled) for c in known):
        return _kept_step(axes, op, known, lifted, made)
    size = local.count if local else axes.size
    classes = [c.axis if isinstance(c, Local) and c.axis else c for c in known]
    if not any(isinstance(c, PerExample) for c in classes):
        return Step(
            op,
            tuple(_operand(v, c, lifted, made) for v, c in zip(op.operands, classes, strict=True)),
        )
    rule = sharding_rules.rule_of(op)
    factor = rule and common_factor(op, rule, classes, size)
    if local is None and factor is None:
        return _kept_step(axes, op, known, lifted, made)
    assert rule is not None
    assert factor is not None
    inputs: list[Input] = []
    for value, known, factors in zip(op.operands, classes, rule.operands, strict=True):
        sliced = isinstance(known, PerExample | Shared)
        axis = sharding_rules.find_axis(rule, factors, value, factor) if sliced else None
        if axis and local:
            inputs.append((value, Placed(local.index, axis, local.count, local.major)))
        else:
            inputs.append((value, axis) if axis else _operand(value, known, lifted, made))
    return Step(op, tuple(inputs))


def _kept_step(
    axes: Axes,
    op: Operation,
    known: Sequence[Class],
    lifted: Mapping[Value, Value],
    made: Container[Value],
) -> Step:
    """A step whose operands show each example's part wherever it lies."""
    operands = [_kept(axes, v, c) for v, c in zip(op.operands, known, strict=True)]
    summed = frozenset(i for i, c in enumerate(known) if isinstance(c, Summed))
    kept = kept_operands(op, operands, summed, axes.size)
    if kept is None:
        raise Refusal(mixed(op, SCATTERED, unknown=True).reason)
    inputs = [
        (value, axis) if axis else _operand(value, c, lifted, made)
        for value, c, axis in zip(op.operands, known, kept, strict=True)
    ]
    return Step(op, tuple(inputs))


def _kept(axes: Axes, value: Value, known: Class) -> Kept:
    if isinstance(known, Labelled):
        return Kept(known.labels, known.counters)
    shape = mlir.shape(value)
    if not isinstance(known, PerExample):
        return Kept(nobodys(shape))
    split = (*shape[: known.dim], known.before, axes.size, known.after, *shape[known.dim + 1 :])
    return Kept(regrouped(own_rows(split, known.dim + 1), shape))


def _parted_step(axes: Axes, op: Operation, classes: Sequence[Class]) -> Step:
    """A site at which a batch split over two dimensions is summed over one of them or both."""
    rule = sharding_rules.rule_of(op)
    factors = rule and split_batches.split_factors(op, rule, classes, axes.size)
    assert rule is not None
    assert factors is not None
    count = next(c.parts for c in classes if isinstance(c, Split))
    stays = [factor.factor not in rule.reduced for factor in factors]
    kept = "major" if stays[0] else "minor" if stays[1] else ""
    inputs: list[Input] = []
    for i, (value, own) in enumerate(zip(op.operands, rule.operands, strict=True)):
        major, minor = (sharding_rules.find_axis(rule, own, value, factor) for factor in factors)
        parted = (major or minor) and i not in initial_operands(op)
        inputs.append((value, Parted(major, minor, count, kept) if parted else None))
    return Step(op, tuple(inputs))
