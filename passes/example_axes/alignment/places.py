"""Places: in contributions, each dimension whose row b is example b's place, with others' in it.

    %s = dot_general %z, %z over features
        %z: PerExample(0)                       =>  %s: Crossed(0, 1)
    %a = dot_general %s, %v over columns
        %s: Crossed(0, 1), %v: PerExample(0)    =>  %a: PerExample(0)

An op is looked at along one place at a time, what it takes of other examples being constants. A sum
over examples is theirs only where no place is left: before, it is a value of the example whose
place it has.
"""

import itertools
import math
from collections.abc import Callable, Sequence

from hlo_surgery.passes.example_axes.lattice import (
    Axes,
    Class,
    Crossed,
    Mixed,
    PerExample,
    Shared,
    Summed,
)
from hlo_surgery.passes.example_axes.reasons import mixed
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import source_line

Classify = Callable[[Axes, Operation, list[Class]], list[Class]]
MEETING = "each example meets others, whose values are used as constants"
PAIRS = (
    "pairs of examples are summed at once, so that which of two examples a term belongs to is "
    "not known"
)
MOST_VIEWS = 256


def places_of(known: Class) -> tuple[PerExample, ...]:
    """All dimensions that hold the examples."""
    if isinstance(known, PerExample):
        return (known,)
    return known.places if isinstance(known, Crossed) else ()


def views(classes: Sequence[Class], constant: Shared) -> list[list[Class]]:
    """The classes with one place of each operand that has any, or with none; most places first.

    None of them where there are too many.
    """
    choices = [[*places_of(c), constant] if places_of(c) else [c] for c in classes]
    if math.prod(map(len, choices)) > MOST_VIEWS:
        return []
    found = [list(view) for view in itertools.product(*choices)]
    return sorted(
        (v for v in found if any(map(places_of, v))),
        key=lambda v: -sum(len(places_of(c)) for c in v),
    )


def is_within(view: Sequence[Class], other: Sequence[Class]) -> bool:
    """Whether another view has all places that this one has."""
    return all(not places_of(c) or c == o for c, o in zip(view, other, strict=True))


def classify_places(
    axes: Axes, op: Operation, classes: list[Class], classify: Classify
) -> list[Class]:
    """The classes of an op's results where examples meet in it."""
    reason = Reason(MEETING, op.name, source_line(op))
    taken: list[list[Class]] = []
    found: list[list[Class]] = []
    for view in views(classes, Shared(reason)):
        if view == classes or any(is_within(view, other) for other in taken):
            continue
        seen = classify(axes, op, view)
        if unknown := next((c for c in seen if isinstance(c, Mixed) and c.unknown), None):
            return [unknown] * len(op.results)
        if not all(isinstance(c, Mixed) for c in seen):
            taken.append(view)
            found.append(seen)
    if len(taken) == 1:
        found = [classify(axes, op, taken[0])]
    else:
        axes.taken[op.results[0]] = tuple(classes)
    axes.data.setdefault(op.results[0], reason)
    return [_together(axes, op, i, [seen[i] for seen in found]) for i in range(len(op.results))]


def _together(axes: Axes, op: Operation, number: int, found: Sequence[Class]) -> Class:
    """One result, from what it is along each place."""
    if len(found) == 1:
        return found[0]
    places = tuple(dict.fromkeys(place for c in found for place in places_of(c)))
    if places:
        return places[0] if len(places) == 1 else Crossed(places)
    if found and all(isinstance(c, Summed) for c in found):
        axes.lost[op.results[number]] = Reason(PAIRS, op.name, source_line(op))
        return Shared(Reason(PAIRS, op.name, source_line(op)))
    return mixed(op, MEETING)
