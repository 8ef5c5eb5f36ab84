"""Gradient slices: given a gradient, the ops that sum examples (sites), affine ones behind (tail).

%m = dot_general %h, %l   contracts the examples  =>  site
%t = transpose %m                                 =>  tail
return %t
"""

from collections.abc import Container, Mapping
from functools import cmp_to_key
from typing import Any, cast

from hlo_surgery.passes.axes.classes import Class
from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.linearity import initial_operands, is_linear
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.example_axes import example_axes, kept_axis
from hlo_surgery.passes.terms.steps import (
    HELD,
    LIFTED,
    Axis,
    GradientSlice,
    Held,
    Input,
    Step,
    is_made,
)


def gradient_slice(axes: Axes, output: Value, lifted: Mapping[Value, Value]) -> GradientSlice:
    """The slice of an output that is Summed, or Shared or of single examples (then it is empty).

    It ends at sites and at values that are lifted already: by `lifted`, which holds their lifted
    versions.
    """
    found: set[Value] = set()
    pending = [output]
    while pending:
        value = behind_barriers(pending.pop())
        if value in found or value in lifted or not axes.is_sum(axes.of(value)):
            continue
        found.add(value)
        pending += axes.summed(_producer(value))
    ordered = _in_program_order(found)
    steps = tuple(_step(axes, op, lifted, found) for op in ordered)
    return GradientSlice(_input(output, _output_axis(axes, output), lifted), steps)


def _output_axis(axes: Axes, output: Value) -> Axis:
    """What each example has in a value that a state of a loop or branch takes in."""
    return kept_axis(axes, output) if axes.is_rows(axes.of(output)) else None


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
    axes: Axes,
    value: Value,
    known: Class,
    lifted: Mapping[Value, Value],
    made: Container[Value],
) -> Input:
    """An operand without an example axis: a sum that belongs to the slice, or a constant."""
    if axes.is_sum(known):
        return _input(value, None, lifted)
    source = behind_barriers(value)
    return source, HELD if source in made or source in lifted else None


def gradient_step(axes: Axes, op: Operation) -> Step:
    """One op that sums over the examples, by itself."""
    return _step(axes, op, {}, ())


def _step(axes: Axes, op: Operation, lifted: Mapping[Value, Value], made: Container[Value]) -> Step:
    known = axes.at(op)
    each = zip(op.operands, known, example_axes(axes, op, known), strict=True)
    inputs = [(v, a) if a else _operand(axes, v, c, lifted, made) for v, c, a in each]
    return Step(op, tuple(inputs))


def has_offset(sliced: GradientSlice) -> bool:
    """Whether the gradient holds more than the examples' contributions, as of a regulariser.

    What a loop has lifted may hold it too, and does not tell.
    """
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
