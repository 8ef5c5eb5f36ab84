"""Places: in contributions, each way in which an element is computed by an example, beside others.

    %s = dot_general %z, %z over features
        %z: Owned by rows                         =>  %s: Crossed, by rows and by columns
    %a = dot_general %s, %v over columns
        %s: Crossed, %v: Owned by rows            =>  %a: Owned by rows

An op is looked at along one labelling of each operand at a time, what it takes of other examples
being constants. A sum over examples is theirs only where no labelling is left: before, it is a
value of the example that computes it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.classes import (
    Class,
    Crossed,
    Mixed,
    Owned,
    Summed,
    mixed,
)
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.owners.owners import Owners

Transfer = Callable[[Owners, Operation, Sequence[Class]], list[Class]]
MEETING = "each example meets others, whose values are used as constants"
PAIRS = (
    "pairs of examples are summed at once, so that which of two examples a term belongs to is "
    "not known"
)
PAIRS_HELP = "ask for the statistics of other parameters"
MOST_VIEWS = 256


def places_of(known: Class) -> tuple[Labels, ...]:
    """All labellings by which examples compute a value."""
    if isinstance(known, Owned) and not known.is_shared:
        return (known.labels,)
    return known.places if isinstance(known, Crossed) else ()


def meets(classes: Sequence[Class], found: Sequence[Class]) -> bool:
    """Whether an op of these classes is to be looked at along one labelling at a time."""
    if any(isinstance(c, Crossed) for c in classes):
        return True
    mixes = all(isinstance(c, Mixed) and not c.unknown for c in found)
    return mixes and sum(map(bool, map(places_of, classes))) > 1


def classify_places(
    owners: Owners,
    op: Operation,
    classes: Sequence[Class],
    again: Transfer,
) -> list[Class]:
    """The classes of an op's results where examples meet in it."""
    reason = reason_at(op, MEETING)
    taken: list[list[Class]] = []
    found: list[list[Class]] = []
    for view in views(owners, op, classes, reason):
        if view == list(classes) or any(is_within(view, other) for other in taken):
            continue
        seen = again(owners, op, view)
        if unknown := next((c for c in seen if isinstance(c, Mixed) and c.unknown), None):
            return [unknown] * len(op.results)
        if not all(isinstance(c, Mixed) for c in seen):
            taken.append(view)
            found.append(seen)
    if len(taken) == 1:
        found = [again(owners, op, taken[0])]
    else:
        owners.taken[op.results[0]] = tuple(classes)
    owners.data.setdefault(op.results[0], reason)
    rows = [[seen[i] for seen in found] for i in range(len(op.results))]
    return [_together(owners, op, i, row) for i, row in enumerate(rows)]


def views(
    owners: Owners, op: Operation, classes: Sequence[Class], reason: Reason
) -> list[list[Class]]:
    """The classes with one labelling of each operand that has any, or as a constant; most labelled
    first. None of them where there are too many.
    """
    choices: list[list[Class]] = []
    for value, known in zip(op.operands, classes, strict=True):
        constant = replace(owners.nobodys(value), data=reason)
        own = _one_by_one(known)
        choices.append([*own, constant] if own else [known])
    if math.prod(map(len, choices)) > MOST_VIEWS:
        return []
    found = [list(view) for view in itertools.product(*choices)]
    return sorted((view for view in found if _count(view)), key=lambda view: -_count(view))


def _one_by_one(known: Class) -> list[Class]:
    if isinstance(known, Crossed):
        return [Owned(labels) for labels in known.places]
    return [known] if places_of(known) else []


def _count(view: Sequence[Class]) -> int:
    return sum(len(places_of(known)) for known in view)


def is_within(view: Sequence[Class], other: Sequence[Class]) -> bool:
    """Whether another view has all labellings that this one has."""
    return all(not places_of(c) or c == o for c, o in zip(view, other, strict=True))


def _together(owners: Owners, op: Operation, number: int, found: Sequence[Class]) -> Class:
    """One result, from what it is along each labelling."""
    if len(found) == 1:
        return found[0]
    places = tuple(dict.fromkeys(labels for c in found for labels in places_of(c)))
    if places:
        return Owned(places[0]) if len(places) == 1 else Crossed(places)
    sums = [isinstance(c, Summed) for c in found]
    if found and all(sums):
        reason = reason_at(op, PAIRS, PAIRS_HELP)
        return replace(owners.nobodys(op.results[number]), data=reason)
    return mixed(op, PAIRS, help=PAIRS_HELP) if any(sums) else mixed(op, MEETING)
