"""Gradient slices: given a gradient, the ops that sum examples (sites), affine ones behind (tail).

%m = dot_general %h, %l   contracts the examples  =>  site
%t = transpose %m                                 =>  tail
return %t
"""

from collections.abc import Container, Mapping, Sequence
from functools import cmp_to_key
from typing import Any, cast

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.dataflow.sharding_rules import ExampleFactor, Rule
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.ir.linearity import initial_operands, is_linear
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Summed, mixed
from hlo_surgery.passes.owners.labelling.labels import nobodys
from hlo_surgery.passes.terms.axes import Axes, Class, Labelled, Shared
from hlo_surgery.passes.terms.example_factors import example_factors
from hlo_surgery.passes.terms.kept_examples import kept_operands
from hlo_surgery.passes.terms.steps import (
    HELD,
    LIFTED,
    Axis,
    Gathered,
    GradientSlice,
    Held,
    Input,
    Parted,
    Rows,
    Step,
    is_made,
)

SCATTERED = "the examples lie in a way that no strategy can take apart yet"


def gradient_slice(axes: Axes, output: Value, lifted: Mapping[Value, Value]) -> GradientSlice:
    """The slice of an output that is Summed, or Shared or of single examples (then it is empty).

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
    steps = tuple(_step(axes, op, lifted, found) for op in ordered)
    return GradientSlice(_input(output, _output_axis(axes, output), lifted), steps)


def _output_axis(axes: Axes, output: Value) -> Axis:
    """What each example has in a value that a state of a loop or branch takes in."""
    known = axes.of(output)
    return known if isinstance(known, Labelled) else None


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


def gradient_step(axes: Axes, op: Operation) -> Step:
    """One op that sums over the examples, by itself."""
    return _step(axes, op, {}, ())


def _step(axes: Axes, op: Operation, lifted: Mapping[Value, Value], made: Container[Value]) -> Step:
    known = axes.at(op)
    each = zip(op.operands, known, _example_axes(axes, op, known), strict=True)
    inputs = [(v, axis) if axis else _operand(v, c, lifted, made) for v, c, axis in each]
    return Step(op, tuple(inputs))


def _example_axes(axes: Axes, op: Operation, known: Sequence[Class]) -> Sequence[Axis]:
    """How each operand shows the part of one example, None where it shows none."""
    if op.results[0] in axes.sites:
        return _rows(axes, op, known)
    if not any(isinstance(c, Labelled) for c in known):
        return [None] * len(known)
    rule = sharding_rules.rule_of(op)
    factors = example_factors(op, rule, known, axes.size) if rule else []
    if rule is None or not factors or not _sums_over(op, rule, factors):
        return _kept(op, known)
    if len(factors) == 2:
        return _parted(op, rule, factors)
    return [
        sharding_rules.find_axis(rule, dims, value, factors[0])
        if isinstance(own, Labelled | Shared)
        else None
        for value, own, dims in zip(op.operands, known, rule.operands, strict=True)
    ]


def _rows(axes: Axes, op: Operation, known: Sequence[Class]) -> list[Rows | None]:
    """The rows of one example, wherever these are."""
    owners, met = axes.sites[op.results[0]], axes.met
    assert met is not None
    own = frozenset(i for i, x in enumerate(owners) if x is not None)
    summed = frozenset(i for i, c in enumerate(known) if isinstance(c, Summed))
    factor = next(i for i in sorted(own) if linearity.is_linear(op, frozenset([i])))
    weighted = own if linearity.is_linear(op, own | summed) else {factor}
    return [None if x is None else Rows(x, met, i in weighted) for i, x in enumerate(owners)]


def _sums_over(op: Operation, rule: Rule, factors: Sequence[ExampleFactor]) -> bool:
    """Whether an op sums terms of one example each over these factors, or some of them.

    It must be one that looks at no place: a slice of one example's rows is no slice of all.
    """
    sums = all(linearity.sums(op, number) for number in range(len(op.results)))
    return sums and any(f.factor in rule.reduced for f in factors)


def _kept(op: Operation, known: Sequence[Class]) -> Sequence[Axis]:
    """Each example's part wherever it lies."""
    operands = [
        c if isinstance(c, Labelled) else Labelled(nobodys(mlir.shape(v)))
        for v, c in zip(op.operands, known, strict=True)
    ]
    summed = frozenset(i for i, c in enumerate(known) if isinstance(c, Summed))
    kept = kept_operands(op, operands, summed)
    if kept is None:
        raise Refusal(mixed(op, SCATTERED, unknown=True).reason)
    return kept


def _parted(op: Operation, rule: Rule, factors: Sequence[ExampleFactor]) -> list[Parted | None]:
    """Those of a site at which a batch split over two dimensions is summed over one or both."""
    outer, inner = factors
    stays = [factor.factor not in rule.reduced for factor in factors]
    kept = "major" if stays[0] else "minor" if stays[1] else ""
    parts = rule.sizes[outer.factor] // (outer.before * outer.after)
    found: list[Parted | None] = []
    for i, (value, dims) in enumerate(zip(op.operands, rule.operands, strict=True)):
        major, minor = (sharding_rules.find_axis(rule, dims, value, f) for f in (outer, inner))
        is_parted = (major or minor) and i not in initial_operands(op)
        found.append(Parted(major, minor, parts, kept) if is_parted else None)
    return found


def has_offset(sliced: GradientSlice) -> bool:
    """Whether the gradient holds more than the examples' contributions, as of a regulariser.

    What a loop has lifted may hold it too, and does not tell.
    """
    if any(isinstance(axis, Labelled | Gathered) for _, axis in sliced.inputs):
        return True
    return not sliced.steps or any(adds_offset(step, sliced.made) for step in sliced.steps)


def _is_shared(axis: Axis) -> bool:
    return axis is None or isinstance(axis, Held)


def adds_offset(step: Step, made: Container[Value]) -> bool:
    """Whether a step adds what no example has a share of, and is no zero, to what steps `made`."""
    op = step.op
    shared = [
        i for i, key in enumerate(step.inputs) if _is_shared(key[1]) and not is_made(key, made)
    ]
    others = frozenset(range(len(step.inputs))) - frozenset(shared)
    added = [i for i in shared if i in initial_operands(op) or is_linear(op, others | {i})]
    return any(not is_splat(op.operands[i], 0) for i in added)
