"""Microbatch axes: in a loop whose steps take M examples each, a step as a batch of its own.

    %x = dynamic_slice %batch, %i      the owners at step i: members[i]     =>  0 .. M-1

What rests on other examples than those of its step, or holds them now in one way, now in another,
has no class there: it is Mixed.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.classes import (
    Class,
    Mixed,
    Owned,
)
from hlo_surgery.passes.owners.labelling.labels import Labels, Numbers
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.translation import translated

ELSEWHERE = Reason("it rests on examples of other steps", "", "")


def microbatch_axes(
    owners: Owners, loop: Operation, trips: Sequence[int], members: Numbers
) -> Axes:
    """How the values of a step of a loop hold the step's examples.

    `trips`: of the loops around a step, of which this is the innermost. `members`: [steps, M], the
    examples of each step by their numbers in the batch.
    """
    places = _places_in_step(members, owners.size)
    values = [*mlir.captured(loop), *mlir.values_within(loop)]
    classes = {value: _of_step(owners.of(value), trips, places) for value in values}
    made = {v for v in values if v in owners.taken}
    taken = {v: tuple(_of_step(c, trips, places) for c in owners.taken[v]) for v in made}
    trained = {value for value in values if value in owners.trained}
    step = replace(owners, size=members.shape[1], classes=classes, taken=taken, trained=trained)
    return translated(step)


def _places_in_step(members: Numbers, size: int) -> Numbers:
    """[steps, B]: an example's number among those of a step, -1 where it is none of them."""
    places = np.full((len(members), size), -1, np.int32)
    numbers = np.broadcast_to(np.arange(members.shape[1], dtype=np.int32), members.shape)
    np.put_along_axis(places, members.astype(np.int64), numbers, 1)
    return places


def _of_step(known: Class, trips: Sequence[int], places: Numbers) -> Class:
    if not isinstance(known, Owned) or known.is_shared:
        return known
    labels = labels_of_step(known.labels, trips, places)
    return Mixed(ELSEWHERE, unknown=True) if labels is None else replace(known, labels=labels)


def labels_of_step(labels: Labels, trips: Sequence[int], places: Numbers) -> Labels | None:
    """Labels by the examples' numbers in a step, if they are the same at each; the axes of the
    steps, the first, stay with size 1.
    """
    depth = min(labels.steps, len(trips))
    if depth == 0:
        return None
    around, rest = labels.owners.shape[:depth], labels.owners.shape[depth:]
    inner = [1] * (len(trips) - depth)
    owners = np.broadcast_to(labels.owners.reshape(*around, *inner, *rest), (*trips, *rest))
    owners = owners.reshape(len(places), -1)
    local = np.take_along_axis(places, np.maximum(owners, 0).astype(np.int64), 1)
    local = np.where(owners < 0, owners, local)
    elsewhere = (owners >= 0) & (local < 0)
    if elsewhere.any() or (local != local[:1]).any():
        return None
    return Labels(labels.digits, local[0].reshape(*[1] * depth, *rest).astype(np.int32))


def members_of(labels: Labels, trips: Sequence[int], size: int) -> Numbers | None:
    """[steps, M]: the examples of each step of these loops as they come in a value, if each of the
    B is in one step alone, and in each as many.
    """
    depth, steps = len(trips), prod(trips)
    if labels.owners.shape[: min(depth, labels.steps)] != tuple(trips) or size % steps:
        return None
    rows = [_in_order(row) for row in labels.owners.reshape(steps, -1)]
    if any(len(row) != size // steps for row in rows):
        return None
    members = np.stack(rows)
    return members if np.array_equal(np.sort(members.ravel()), np.arange(size)) else None


def _in_order(owners: Numbers) -> Numbers:
    """The examples among some owners, each once, in the order in which they come."""
    numbers, first = np.unique(owners, return_index=True)
    order = numbers[np.argsort(first)]
    return order[order >= 0].astype(np.int32)
