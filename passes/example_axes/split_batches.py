"""Split batches: the example axis over two dimensions, as reshapes into groups or microbatches.

    %p = reshape %x : [B, D] -> [k, B/k, D]            %x: PerExample  =>  %p: Split
    %g = dot_general %p, %l   over both, or over one                   =>  %g: Summed

A sum over one dimension alone is one of the examples too: example b is in one of its rows, and zero
in the others.
"""

import math
from collections.abc import Sequence

from hlo_surgery.passes.example_axes import sharding_rules
from hlo_surgery.passes.example_axes.alignment.batch_constants import (
    initial_data,
    rearranged,
    unlike,
)
from hlo_surgery.passes.example_axes.lattice import Axes, Class, PerExample, Shared, Split, Summed
from hlo_surgery.passes.example_axes.reasons import mixed
from hlo_surgery.passes.example_axes.sharding_rules import ExampleFactor, Rule, reshaped_axis
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation, Value


def split_axis(source: Value, target: Value, axis: PerExample, size: int) -> Split | None:
    """The example axis behind a reshape that splits it over two dimensions."""
    old, new = mlir.shape(source), mlir.shape(target)
    outer = math.prod(old[: axis.dim]) * axis.before
    for dim, count in enumerate(new):
        if math.prod(new[:dim]) == outer and 1 < count < size and size % count == 0:
            flat = PerExample(axis.dim, axis.before * count, axis.after)
            minor = reshaped_axis(source, target, flat, size // count)
            if minor and minor.dim > dim:
                return Split(PerExample(dim), minor, count)
    return None


def classify_split(axes: Axes, op: Operation, classes: list[Class]) -> list[Class]:
    """An op on examples along two dimensions: it must keep to itself along both, or sum."""
    split = next(c for c in classes if isinstance(c, Split))
    if op.name == "stablehlo.reshape":
        return [_reshaped(axes, op, split)]
    rule = sharding_rules.rule_of(op)
    if rule is None or not all(isinstance(c, Shared | Split) for c in classes):
        return [mixed(op, "a batch in parts meets other values of the examples")] * len(op.results)
    factors = split_factors(op, rule, classes, axes.size)
    if factors is None:
        return [
            mixed(
                op,
                "each example meets others: the operands hold the parts along different dimensions",
            )
        ]
    if {factor.factor for factor in factors} & rule.blocked:
        return [mixed(op, "values are moved or combined along the example axis")] * len(op.results)
    if not axes.contribution and (data := _apart(axes, op, classes, rule, factors)):
        return [rearranged(op, data)] * len(op.results)
    data = initial_data(op, classes)
    return [_split_result(op, rule, factors, split.parts, i, data) for i in range(len(op.results))]


def _apart(
    axes: Axes,
    op: Operation,
    classes: Sequence[Class],
    rule: Rule,
    factors: tuple[ExampleFactor, ExampleFactor],
) -> Reason | None:
    """Data of the whole batch of which each example meets another place, along either dimension."""
    split = next(c for c in classes if isinstance(c, Split))
    for factor, count in zip(factors, (split.parts, axes.size // split.parts), strict=True):
        pairs = zip(op.operands, rule.operands, strict=True)
        along = [sharding_rules.find_axis(rule, own, value, factor) for value, own in pairs]
        if data := unlike(op, classes, along, count):
            return data
    return None


def split_factors(
    op: Operation, rule: Rule, classes: Sequence[Class], size: int
) -> tuple[ExampleFactor, ExampleFactor] | None:
    """The factors with all Split operands' major and minor dimensions; None if they differ."""
    major: set[ExampleFactor | None] = set()
    minor: set[ExampleFactor | None] = set()
    for known, factors, value in zip(classes, rule.operands, op.operands, strict=True):
        if isinstance(known, Split):
            major.add(sharding_rules.find_factor(rule, factors, value, known.major, known.parts))
            minor.add(
                sharding_rules.find_factor(rule, factors, value, known.minor, size // known.parts)
            )
    (outer, *others), (inner, *more) = major, minor
    return None if others or more or outer is None or inner is None else (outer, inner)


def _split_result(
    op: Operation,
    rule: Rule,
    factors: tuple[ExampleFactor, ExampleFactor],
    parts: int,
    index: int,
    data: Reason | None,
) -> Class:
    """Split again where both dimensions stay; a sum where one or both are summed over."""
    along = [
        sharding_rules.find_axis(rule, rule.results[index], op.results[index], factor)
        for factor in factors
    ]
    outer, inner = along
    if outer and inner:
        return Split(outer, inner, parts)
    lost = {factor.factor for factor, axis in zip(factors, along, strict=True) if axis is None}
    if lost <= rule.reduced and linearity.sums(op, index):
        return Summed(op, data)
    return mixed(op, "the examples are reduced to one value, and not by a sum of floats")


def _reshaped(axes: Axes, op: Operation, split: Split) -> Class:
    """Split dimensions behind a reshape, or one again."""
    count = axes.size // split.parts
    major = reshaped_axis(op.operands[0], op.results[0], split.major, split.parts)
    minor = reshaped_axis(op.operands[0], op.results[0], split.minor, count)
    if not major or not minor:
        return mixed(op, "a batch in parts is regrouped")
    if major.dim != minor.dim:
        return Split(major, minor, split.parts)
    if minor.before == major.before * split.parts and major.after == count * minor.after:
        return PerExample(major.dim, major.before, minor.after)
    return mixed(op, "a batch in parts is regrouped in another order")
