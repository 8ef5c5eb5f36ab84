"""Translation: owners in the words of emission.

What labels rest on the steps of loops comes with what tells these steps apart.
"""

from typing import Any, cast

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners import classes
from hlo_surgery.passes.owners.classes import (
    Mixed,
    Owned,
    Summed,
)
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.owners.owners import (
    CountedLoop,
    Owners,
)
from hlo_surgery.passes.terms.axes import Axes, Class, Counter, Labelled, Shared

# Sites alone are told whose the rows are (`Axes.sites`).
BY_IDS = Reason("its rows are told apart by ids", "", "")
CROSSED = Reason("values of several examples meet, each at a place of its own", "", "")


def translated(owners: Owners) -> Axes:
    """What is known, as `Axes`."""
    words = {value: _word(owners, value, known) for value, known in owners.classes.items()}
    taken = {result: _taken(owners, result, known) for result, known in owners.taken.items()}
    return Axes(owners.size, words, owners.trained, owners.data, taken)


def _taken(owners: Owners, result: Value, known: tuple[classes.Class, ...]) -> tuple[Class, ...]:
    op = mlir.defining_operation(result)
    values = list(op.operands) if op is not None else []
    return tuple(_word(owners, v, c) for v, c in zip(values, known, strict=False))


def _word(owners: Owners, value: Value, known: classes.Class) -> Class:
    match known:
        case Summed() | Mixed():
            return known
        case classes.Crossed():
            return Mixed(CROSSED, unknown=True)
        case classes.Followed() | classes.Paired():
            return Mixed(BY_IDS, unknown=True)
        case Owned(labels, data):
            return Shared(data) if known.is_shared else _labelled(owners, value, labels)


def _labelled(owners: Owners, value: Value, labels: Labels) -> Labelled:
    counts = labels.owners.shape[: labels.steps]
    if all(count == 1 for count in counts):
        return Labelled(labels)
    loops = _loops_around(owners, value)
    counters = (_counter(loops[axis]) if count > 1 else None for axis, count in enumerate(counts))
    return Labelled(labels, tuple(counters))


def _counter(loop: CountedLoop) -> Counter:
    """What tells a loop's steps apart: of those that it counts, one does, or it would not end."""
    number = step_number(loop)
    if number is not None:
        return Counter(number, tuple(range(loop.trips)))
    counters = loop.counters.items()
    value, numbers = next((v, n) for v, n in counters if len(np.unique(n)) == loop.trips)
    return Counter(value, tuple(numbers.tolist()))


def step_number(loop: CountedLoop) -> Value | None:
    """A counter of a loop that is 0, 1, 2, ..."""
    steps = np.arange(loop.trips)
    return next((v for v, n in loop.counters.items() if np.array_equal(n, steps)), None)


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
