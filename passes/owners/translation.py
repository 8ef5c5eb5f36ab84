"""Translation: owners in the words of passes/example_axes, wherever these have one.

    owners 0 .. B-1 along one digit of a dimension             =>  PerExample
    the same over two digits, of two dimensions                =>  Split
    one example, or a run of them, for each step of a loop     =>  Local

Whatever reads `Axes` can then run on owners. Values whose labels have no such form are listed.
"""

from dataclasses import dataclass, field

import numpy as np

from hlo_surgery.passes.example_axes.lattice import (
    SHARED,
    Axes,
    Class,
    Local,
    PerExample,
    Shared,
    Split,
)
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners import classes
from hlo_surgery.passes.owners.classes import CountedLoop, Owned, Owners
from hlo_surgery.passes.owners.indices import counted_loop, integers_of
from hlo_surgery.passes.owners.labels import Labels, Numbers
from hlo_surgery.passes.owners.words import worded

SCATTERED = "the examples lie in a way that is not followed further yet"


@dataclass
class Translation:
    """`axes`: what has a word; `unworded`: the values that have none, Mixed in `axes`."""

    axes: Axes
    unworded: list[Value] = field(default_factory=list[Value])


def translated(owners: Owners) -> Translation:
    """What is known, as `Axes`."""
    axes = Axes(owners.size, data=owners.data, trained=owners.trained)
    axes.positional, axes.aligned = owners.positional, owners.beside
    axes.part_loops, axes.parting = owners.part_loops, owners.parting
    axes.varying = owners.varying
    made = Translation(axes)
    for value, known in owners.classes.items():
        word = _word(owners, value, known)
        if word is None:
            made.unworded.append(value)
        axes.classes[value] = word or _unworded(value)
    for result, taken in owners.taken.items():
        axes.taken[result] = _taken(owners, axes, result, taken)
    return made


def _unworded(value: Value) -> Class:
    op = mlir.defining_operation(value)
    return worded(classes.mixed(op, SCATTERED, unknown=True)) if op is not None else SHARED


def _taken(
    owners: Owners, axes: Axes, result: Value, known: tuple[classes.Class, ...]
) -> tuple[Class, ...]:
    op = mlir.defining_operation(result)
    values = list(op.operands) if op is not None else []
    pairs = zip(values, known, strict=False)
    return tuple(_word(owners, v, c) or axes.of(v) for v, c in pairs)


def _word(owners: Owners, value: Value, known: classes.Class) -> Class | None:
    if not isinstance(known, Owned):
        return worded(known)
    if known.is_shared:
        return Shared(known.data)
    labels = known.labels
    steps = [axis for axis in range(labels.steps) if labels.owners.shape[axis] > 1]
    if not steps:
        return _place(labels.owners.reshape(labels.owners.shape[labels.steps :]), labels)
    loop = _loops_around(owners, value)[steps[0]] if len(steps) == 1 else None
    return _part(owners, loop, labels, steps[0]) if loop else None


def _place(numbers: Numbers, labels: Labels) -> PerExample | Split | None:
    """Where all examples lie, each once; `numbers`: [*digits]."""
    varying = [axis for axis, size in enumerate(numbers.shape) if size > 1]
    in_order = np.array_equal(numbers.ravel(), np.arange(numbers.size))
    if not in_order or len(varying) not in (1, 2):
        return None
    places = [_digit_place(labels, axis) for axis in varying]
    if len(places) == 1:
        return places[0]
    return Split(places[0], places[1], numbers.shape[varying[0]])


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
    around = mlir.enclosing_loops(op) if op is not None else []
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
