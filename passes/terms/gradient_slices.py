"""Gradient slices: given a gradient, the ops that sum examples (sites), affine ones behind (tail).

%m = dot_general %h, %l   contracts the examples  =>  site
%t = transpose %m                                 =>  tail
return %t

Example axes: how each operand of an op shows one example's part, from where the digits lie.

dot_general %h [B, D], %l [B, F] over B       (PerExample(0), PerExample(0))
dot_general %h [M, D, b], ... over M and b    Split: two digits, in two dimensions
add %sum, %row        in a loop's step        Split: all of it is the step's example's
"""

from collections.abc import Callable, Container, Sequence
from functools import cmp_to_key
from typing import Any, cast

from hlo_surgery.passes.axes.state import Batched, Class, Classes, is_rows, is_sum
from hlo_surgery.passes.dataflow.ancestors import behind_barriers, is_splat
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Operations, Value, Values, closure
from hlo_surgery.passes.ir.traits import initial_operands, is_linear
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves, size_of
from hlo_surgery.passes.terms.steps import (
    HELD,
    LIFTED,
    Axes,
    Axis,
    GradientSlice,
    Input,
    Place,
    Split,
    Step,
    is_made,
)


def example_axes(axes: Axes, op: Operation, known: Classes) -> list[Axis]:
    """How each operand shows the part of one example, None where it shows none; `known`: the
    operands' classes.
    """
    rows = [i for i, c in enumerate(known) if is_rows(c)]
    if not rows:
        return [None] * len(known)
    held = {d for i in rows for d in axes.state.digits(op.operands[i]) if d in axes.batch}
    lost = held - axes.state.digits(op.results[0])
    first = initial_operands(op)
    if not lost:
        each = zip(op.operands, known, strict=True)
        return [_split(axes, op, v, c, lost) if is_rows(c) else None for v, c in each]
    taken = [i for i in range(len(known)) if i not in first and not is_sum(known[i])]
    if _along(axes, op.operands[rows[0]], axes.batch):
        each = enumerate(op.operands)
        return [_along(axes, v, axes.batch) if i in taken else None for i, v in each]
    return _split_site(axes, op, known, taken, lost)


def example_axis(axes: Axes, value: Value) -> PerExample | None:
    """The one dimension in which all examples lie in their order; None where they do not."""
    if not axes.batch or not is_rows(axes.of(value)):
        return None
    return _along(axes, value, list(axes.batch))


def _along(axes: Axes, value: Value, group: Sequence[Digit]) -> PerExample | None:
    """Where digits lie, side by side and whole; None where they do not."""
    for dim, digits in enumerate(axes.state.structure.of(value)):
        own = leaves(digits)
        for place in range(len(own)):
            if own[place : place + len(group)] == list(group):
                before, after = own[:place], own[place + len(group) :]
                return PerExample(dim, size_of(before), size_of(after))
    return None


def _split_site(
    axes: Axes, op: Operation, known: Classes, taken: Sequence[int], lost: set[Digit]
) -> list[Axis]:
    """The operands of a site, of which one at least is zero for all other examples."""
    found: list[Axis] = [None] * len(known)
    for i in taken:
        if is_rows(known[i]) or lost & axes.state.digits(op.operands[i]):
            found[i] = _split(axes, op, op.operands[i], known[i], lost)
    telling = [i for i in taken if found[i] and is_linear(op, {i})]
    if not any(is_rows(known[i]) for i in telling):
        # What rows are is told by indices alone: a factor of each term is taken for the example.
        number = next(i for i in taken if is_linear(op, {i}))
        rows = next(c for c in known if is_rows(c))
        found[number] = _split(axes, op, op.operands[number], rows, lost)
    return found


def _split(axes: Axes, op: Operation | None, value: Value, known: Class, lost: set[Digit]) -> Split:
    """A value by all digits of the batch, of which a site sums those that are `lost`; `op`: what
    takes the value, or makes it.
    """
    places = tuple(_place(axes, op, value, digit, known) for digit in axes.batch)
    digits = enumerate(axes.batch)
    spread = frozenset(k for k, d in digits if places[k].axis is not None and d not in lost)
    return Split(places, spread, bool(lost))


def _place(axes: Axes, op: Operation | None, value: Value, digit: Digit, known: Class) -> Place:
    """How a value has a digit of the batch; `op`: what takes it, or makes it."""
    dims = axes.state.places(value).get(digit)
    if dims:
        own = axes.state.structure.of(value)[dims[0]]
        return place_along(axes, digit, dims[0], own, axes.owner)
    if not isinstance(known, Batched):
        return Place(digit.size)
    if digit in known.at:
        return Place(digit.size, at=known.at[digit])
    return _at_step(axes, mlir.enclosing_loops(op) if op else mlir.loops_around(value), digit)


def place_along(
    axes: Axes, digit: Digit, dim: int, digits: Digits, owner: Callable[[Digit], Value | None]
) -> Place:
    """How a dimension of these digits has a digit of the batch; `owner`: of a digit."""
    own, offsets = leaves(digits), axes.state.offsets
    each = next(each for each in own if each in offsets and offsets[each][0] is digit)
    number = own.index(each)
    axis = PerExample(dim, size_of(own[:number]), size_of(own[number + 1 :]))
    return Place(digit.size, axis, offsets[each][1], each.size, owner=owner(each))


def _at_step(axes: Axes, around: Operations, digit: Digit) -> Place:
    """The place that each step of a loop takes along a digit, told by a counter of the loop: the
    innermost of those around that takes it step by step, if one does.
    """
    loops = [loop for op in around if (loop := axes.state.structure.loop_of(op))]
    orders = ((loop, *pair) for loop in loops for pair in loop.digits.items())
    taking = (each for each in orders if digit in axes.state.batch_digits([each[2]]))
    found = next(taking, None)
    if found is None:
        return Place(digit.size)
    loop, order, steps = found
    own = leaves([steps])
    number = [axes.state.offsets.get(each, (None, 0))[0] for each in own].index(digit)
    after, first = size_of(own[number + 1 :]), axes.state.offsets[own[number]][1]
    table = tuple(first + place // after % own[number].size for place in order)
    counter, numbers = loop.counter()
    return Place(digit.size, step=counter, numbers=numbers, table=table)


def gradient_slice(axes: Axes, output: Value) -> GradientSlice:
    """The slice of an output that is a sum over the examples; of rows, or of what is Shared, it is
    empty.

    It ends at sites and at values that are lifted already.
    """

    def sums_of(values: Values) -> Values:
        sources = map(behind_barriers, values)
        return [v for v in sources if v not in axes.lifted and axes.sums(v)]

    found = closure(sums_of([output]), lambda value: sums_of(axes.summed(value)))
    ordered = _in_program_order(found)
    steps = tuple(gradient_step(axes, op, found) for op in ordered)
    # A state of a loop or branch may take in the examples' own.
    op, known = mlir.defining_operation(output), axes.of(output)
    axis = _split(axes, op, output, known, set()) if is_rows(known) else None
    return GradientSlice(_input(axes, output, axis), steps)


def _producer(value: Value) -> Operation:
    op = mlir.defining_operation(value)
    assert op is not None
    assert op.name not in mlir.CONTROL_FLOW
    return op


def _in_program_order(made: set[Value]) -> Operations:
    ops = {op.results[0]: op for op in map(_producer, made)}.values()
    return sorted(ops, key=cmp_to_key(lambda x, y: -1 if cast(Any, x).is_before_in_block(y) else 1))


def _input(axes: Axes, value: Value, axis: Axis) -> Input:
    source = behind_barriers(value)
    return (axes.lifted[source], LIFTED) if source in axes.lifted else (source, axis)


def _operand(axes: Axes, value: Value, known: Class, made: Container[Value]) -> Input:
    """An operand without an example axis: a sum that belongs to the slice, or a constant."""
    if is_sum(known):
        return _input(axes, value, None)
    source = behind_barriers(value)
    return source, HELD if source in made or source in axes.lifted else None


def gradient_step(axes: Axes, op: Operation, made: Container[Value] = ()) -> Step:
    """One op of a slice, by itself or behind others that have `made` sums."""
    known = axes.at(op)
    each = zip(op.operands, known, example_axes(axes, op, known), strict=True)
    inputs = [(v, a) if a else _operand(axes, v, c, made) for v, c, a in each]
    return Step(op, tuple(inputs))


def has_offset(sliced: GradientSlice) -> bool:
    """Whether the gradient holds more than the examples' contributions, as of a regulariser.

    What a loop has lifted may hold it too, and does not tell.
    """
    return not sliced.steps or any(adds_offset(step, sliced.made) for step in sliced.steps)


def adds_offset(step: Step, made: Container[Value]) -> bool:
    """Whether a step adds what no example has a share of, and is no zero, to what steps `made`."""
    op = step.op
    shared = [
        i for i, key in enumerate(step.inputs) if key[1] in (None, HELD) and not is_made(key, made)
    ]
    others = frozenset(range(len(step.inputs))) - frozenset(shared)
    added = [i for i in shared if i in initial_operands(op) or is_linear(op, others | {i})]
    return any(not is_splat(op.operands[i], 0) for i in added)
