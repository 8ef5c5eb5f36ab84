"""Translation: owners in the words of emission, wherever these have one.

    owners 0 .. B-1 along one digit of a dimension             =>  PerExample
    the same over two digits, of two dimensions                =>  Split
    one example, or a run of them, for each step of a loop     =>  Local

Other labels go on as they are (Labelled). Where steps of a loop matter that has no counter, there
is no word, and what examples reach by way of such values is Mixed.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.linked import linked
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners import classes
from hlo_surgery.passes.owners.classes import CountedLoop, Owned, Owners, is_shared
from hlo_surgery.passes.owners.labelling.indices import counted_loop, integers_of
from hlo_surgery.passes.owners.labelling.labels import Labels, Numbers
from hlo_surgery.passes.terms.axes import (
    Axes,
    Class,
    Labelled,
    Local,
    Mixed,
    PerExample,
    Shared,
    Split,
    Summed,
)

SCATTERED = "the examples lie in a way that is not followed further yet"
# Sites alone are told whose the rows are (`Axes.sites`).
BY_IDS = Reason("its rows are told apart by ids", "", "")
CROSSED = Reason("values of several examples meet, each at a place of its own", "", "")


def translated(owners: Owners) -> Axes:
    """What is known, as `Axes`; values whose labels have no word are Mixed, with all that is made
    of them.
    """
    axes = Axes(owners.size, data=owners.data, trained=owners.trained)
    words = {value: _word(owners, value, known) for value, known in owners.classes.items()}
    lost = closure([value for value, word in words.items() if word is None], _made_from)
    for value, word in words.items():
        shared = is_shared(owners.of(value))
        axes.classes[value] = word if word and (shared or value not in lost) else _lost(value)
    for result, taken in owners.taken.items():
        axes.taken[result] = _taken(owners, axes, result, taken)
    return axes


def _made_from(value: Value) -> list[Value]:
    """The values that are made of one, and that a loop or branch has it for."""
    users = [cast(Any, use.owner).operation for use in value.uses]
    return [*linked(value), *(result for op in users for result in op.results)]


def _lost(value: Value) -> Class:
    """Of what rests on a value without a word nothing is said that would be relied on."""
    op = mlir.defining_operation(value) or cast(Any, value.owner).owner.operation
    return Mixed(classes.mixed(op, SCATTERED, unknown=True).reason, unknown=True)


def _taken(
    owners: Owners, axes: Axes, result: Value, known: tuple[classes.Class, ...]
) -> tuple[Class, ...]:
    op = mlir.defining_operation(result)
    values = list(op.operands) if op is not None else []
    pairs = zip(values, known, strict=False)
    return tuple(_word(owners, v, c) or axes.of(v) for v, c in pairs)


def _word(owners: Owners, value: Value, known: classes.Class) -> Class | None:
    match known:
        case classes.Summed(site, data):
            return Summed(site, data)
        case classes.Mixed(reason, unknown):
            return Mixed(reason, unknown)
        case classes.Crossed():
            return Mixed(CROSSED, unknown=True)
        case classes.Followed():
            return Mixed(BY_IDS, unknown=True)
        case Owned(labels, data):
            return Shared(data) if known.is_shared else _placed_word(owners, value, labels)


def _placed_word(owners: Owners, value: Value, labels: Labels) -> Class | None:
    steps = [axis for axis in range(labels.steps) if labels.owners.shape[axis] > 1]
    if not steps:
        numbers = labels.owners.reshape(labels.owners.shape[labels.steps :])
        return _place(owners, numbers, labels) or Labelled(labels)
    loops = _loops_around(owners, value)
    part = _part(owners, loops[steps[0]], labels, steps[0]) if len(steps) == 1 else None
    return part or _by_steps(loops, labels, steps)


def _by_steps(
    loops: Sequence[CountedLoop], labels: Labels, varying: Sequence[int]
) -> Labelled | None:
    """Labels that depend on the steps of loops, if each has a counter of its steps."""
    counters = [
        step_number(loops[axis]) if axis in varying else None for axis in range(labels.steps)
    ]
    if any(counters[axis] is None for axis in varying):
        return None
    return Labelled(labels, tuple(counters))


def step_number(loop: CountedLoop) -> Value | None:
    """A counter of a loop that is 0, 1, 2, ..."""
    steps = np.arange(loop.trips)
    return next((v for v, n in loop.counters.items() if np.array_equal(n, steps)), None)


def _place(owners: Owners, numbers: Numbers, labels: Labels) -> PerExample | Split | None:
    """Where all examples lie, each once; `numbers`: [*digits]."""
    if numbers.size != owners.size:
        return None
    varying = [axis for axis, size in enumerate(numbers.shape) if size > 1]
    places = [_digit_place(labels, axis) for axis in varying]
    if len(places) == 1 and _in_order(numbers):
        return places[0]
    if len(places) == 2 and _in_order(numbers):
        return Split(places[0], places[1], numbers.shape[varying[0]])
    if len(places) == 2 and _in_order(numbers.T):
        return Split(places[1], places[0], numbers.shape[varying[1]])
    return None


def _in_order(numbers: Numbers) -> bool:
    return np.array_equal(numbers.ravel(), np.arange(numbers.size))


def _digit_place(labels: Labels, axis: int) -> PerExample:
    """Where a digit lies in its dimension; `axis`: its number among all digits."""
    for dim, group in enumerate(labels.digits):
        if axis < len(group):
            before, after = group[:axis], group[axis + 1 :]
            return PerExample(dim, int(np.prod(before)), int(np.prod(after)))
        axis -= len(group)
    raise IndexError(axis)


def _loops_around(owners: Owners, value: Value) -> list[CountedLoop]:
    """The counted loops around a value, outermost first."""
    op = mlir.defining_operation(value)
    if op is None:
        loop = cast(Any, value.owner).owner.operation
        around = [loop, *mlir.enclosing_loops(loop)] if loop.name == "stablehlo.while" else []
    else:
        around = mlir.enclosing_loops(op)
    found = [counted_loop(owners, loop) for loop in reversed(around)]
    return [loop for loop in found if loop]


def _part(owners: Owners, loop: CountedLoop, labels: Labels, step: int) -> Local | None:
    """What belongs to the examples of each step of a loop."""
    varying = [a for a, size in enumerate(labels.owners.shape) if size > 1 and a >= labels.steps]
    if len(varying) > 1:
        return None
    numbers = np.moveaxis(labels.owners, step, 0).reshape((loop.trips, -1))
    count = numbers.shape[1]
    axis = _digit_place(labels, varying[0] - labels.steps) if varying else None
    for major, parts in ((True, numbers[:, 0] // count), (False, numbers[:, 0])):
        first = parts[:, None] * count if major else parts[:, None]
        stride = 1 if major else owners.size // count
        fits = (numbers == first + stride * np.arange(count)).all()
        order = tuple(int(part) for part in parts)
        index = _number_in(owners, loop, order)
        if fits and index is not None and sorted(order) == list(range(owners.size // count)):
            return Local(axis, count, major, order, loop.op.results[0], index)
    return None


def _number_in(owners: Owners, loop: CountedLoop, order: tuple[int, ...]) -> Value | None:
    """An integer of a loop's body that is the number of the part at hand."""
    for op in mlir.operations(loop.op.regions[1].blocks[0]):
        if op.name != "stablehlo.dynamic_slice":
            continue
        for value in list(op.operands)[1:]:
            if _follows(owners, value, order):
                return value
    return None


def _follows(owners: Owners, value: Value, order: tuple[int, ...]) -> bool:
    numbers = integers_of(owners, value)
    return numbers is not None and tuple(numbers.ravel().tolist()) == order
