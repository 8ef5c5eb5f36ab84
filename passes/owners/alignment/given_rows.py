"""Given rows: elements of nobody that get an owner on their way, as if they had lain beside what
that example owns.

    %h = concatenate %x, %e : [2 B, D]      %x: of owners 0 .. B-1, %e: nobody's
    %p = transpose (reshape %h) : [B, 2, D] =>  by example; row b of %e lies at example b's place
    %c = while (%c = %e) { add %c, %x }     =>  the same
"""

from collections.abc import Iterable, Iterator

from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.placements import (
    GATHER,
    at_every_step,
    places_behind,
    places_taken,
)
from hlo_surgery.passes.owners.classes import Owned, is_shared
from hlo_surgery.passes.owners.labelling.frames import joined, same
from hlo_surgery.passes.owners.labelling.labels import Labels, owned_alone
from hlo_surgery.passes.owners.owners import Owners

Placing = tuple[Value, Labels]
PASSING = mlir.CONTROL_FLOW | {mlir.BARRIER}


def given_rows(owners: Owners, op: Operation) -> Iterator[Placing]:
    """What nobody owns and an op's results have an owner for, with the places that it gets."""
    given = _passed_on(owners, op) if op.name in PASSING else _made_of(owners, op)
    for value, places in given:
        yield from _nobodys_in(owners, value, places)


def _labels(owners: Owners, value: Value) -> Labels | None:
    """Whose the elements of a value are at all steps, or which group's sums."""
    labels = _labels_by_step(owners, value)
    return at_every_step(labels) if labels else None


def _labels_by_step(owners: Owners, value: Value) -> Labels | None:
    known = owners.of(value)
    return owners.grouped.get(value) or (known.labels if isinstance(known, Owned) else None)


def _passed_on(owners: Owners, op: Operation) -> Iterator[Placing]:
    """What a loop's carries or a branch's results start from, or get."""
    for result in mlir.results(op):
        states = ties(result)
        for labels in (_labels(owners, v) for v in states):
            if labels and labels.varies:
                yield from ((v, labels) for v in states if _has_any(owners, v))


def _has_any(owners: Owners, value: Value) -> bool:
    """Whether elements of a value are nobody's at all steps."""
    labels = _labels_by_step(owners, value)
    # What has an owner at each step has one at all of them, and is told sooner.
    if labels is None or not labels.has_nobodys:
        return False
    return at_every_step(labels).has_nobodys


def _made_of(owners: Owners, op: Operation) -> Iterator[Placing]:
    """The operands of which some elements are nobody's, and have an owner in the result."""
    partly = [v for v in op.operands if not is_shared(owners.of(v)) and _has_any(owners, v)]
    labels = _labels(owners, op.results[0]) if partly and len(op.results) == 1 else None
    if not labels or not _tells_apart(owners, op, labels):
        return
    for value, places in _before(owners, op, labels):
        if value in partly and _gives(owners, value, places):
            yield value, places


def _tells_apart(owners: Owners, op: Operation, labels: Labels) -> bool:
    """Whether elements of a result have other owners than others, or at other steps."""
    known = owners.of(op.results[0])
    return labels.varies or (isinstance(known, Owned) and known.labels.owners.size > 1)


def _before(owners: Owners, op: Operation, labels: Labels) -> Iterable[Placing]:
    """The operands with their places; of a gather, those that it takes over all steps."""
    known = owners.of(op.results[0])
    if op.name != GATHER or not isinstance(known, Owned):
        return places_behind(owners, op, 0, labels)
    return [(op.operands[0], places_taken(owners, op, known.labels))]


def _gives(owners: Owners, value: Value, places: Labels) -> bool:
    labels = _labels(owners, value)
    return labels is not None and not same(labels, joined([labels, owned_alone(places)]))


def _nobodys_in(owners: Owners, value: Value, places: Labels) -> Iterator[Placing]:
    """What nobody owns of a value, or of what it is made of, with its places."""
    pending, seen = [(value, places)], set[tuple[Value, bytes]]()
    while pending:
        value, places = pending.pop()
        key = value, places.owners.tobytes()
        if key in seen or not _has_any(owners, value):
            continue
        seen.add(key)
        if is_shared(owners.of(value)):
            yield value, places
            continue
        op = mlir.defining_operation(value)
        if op is None or op.name in PASSING:
            pending += [(v, places) for v in ties(value)]
        else:
            pending += places_behind(owners, op, 0, places)
