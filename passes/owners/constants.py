"""Constants: data of several examples that counts as a constant of the batch, and where it may not.

A value that no parameter reaches is data; where examples meet in it, it is a constant that all
share, and listed. What all examples meet alike is one constant for all:

    x - mean(x)                    =>  Owned as x is
    x * cumsum(x), x * x[::-1]     =>  Mixed: each example meets a place of its own in it

That goes for places along a dimension and for steps of a loop alike. A constant may scale what the
examples add to a gradient; as a term of it, it would be nobody's share.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import gather_numbers
from hlo_surgery.passes.ir.errors import CALL_HELP, DATA_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.step_positions import POSITIONAL
from hlo_surgery.passes.owners.classes import (
    Class,
    Mixed,
    Owned,
    Summed,
    is_shared,
    mixed,
)
from hlo_surgery.passes.owners.factors import Meeting, counts_by, meeting
from hlo_surgery.passes.owners.labelling.indices import column
from hlo_surgery.passes.owners.labelling.labels import Labels, Numbers, Places, join
from hlo_surgery.passes.owners.labelling.spots import spots_of
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.products.products_of_sums import UNDIVIDED


def data_in(known: Class) -> Reason | None:
    """The data of the whole batch in a value; sums over places of examples hold none."""
    data = known.data if isinstance(known, Owned | Summed) else None
    return data if data is not None and data.why != POSITIONAL else None


def is_undivided(known: Class) -> bool:
    """Whether a constant is a product of sums over the batch."""
    return isinstance(known, Owned) and known.data is not None and known.data.why == UNDIVIDED


def held(classes: Iterable[Class]) -> Reason | None:
    """What a value made of these holds: a product of sums if one does, or data, or else places."""
    known = [c for c in classes if isinstance(c, Owned | Summed) and c.data]
    best = max(known, key=lambda c: (is_undivided(c), data_in(c) is not None), default=None)
    return best.data if best else None


def added_data(op: Operation, classes: Sequence[Class], terms: frozenset[int]) -> Reason | None:
    """Data of the whole batch in the constant part of a sum of these operands, and in what the op
    adds.
    """
    if linearity.is_linear(op, terms):
        added = {i for i in range(len(classes)) if linearity.is_linear(op, terms | {i})}
    else:
        added = set(linearity.initial_operands(op))
    return held(classes[i] for i in sorted(added | terms))


def as_constant(owners: Owners, value: Value, known: Class) -> Class:
    """Data that is mixed counts as a constant of the batch."""
    if isinstance(known, Mixed) and value not in owners.trained:
        owners.data.setdefault(value, known.reason)
        return replace(owners.nobodys(value), data=known.reason)
    return known


def demoted(
    owners: Owners, op: Operation, classes: Sequence[Class], positions: Collection[int]
) -> list[Class]:
    """The classes where these operands, sums over the batch, count as constants."""
    found = list(classes)
    for i in positions:
        known, value = classes[i], op.operands[i]
        assert isinstance(known, Summed)
        trained = value in owners.trained
        what = "a sum over the batch" if trained else "a sum of data over the batch"
        reason = reason_at(known.site, f"{what} is used as a constant")
        owners.data.setdefault(value, reason)
        found[i] = known.instead or replace(owners.nobodys(value), data=reason)
    owners.taken[op.results[0]] = tuple(found)
    return found


def rearranged(op: Operation, data: Reason) -> Mixed:
    """The class of what is made where each example meets a place of its own in data of all."""
    why = "data of the whole batch, rearranged over the examples, meets each example's own values"
    help = CALL_HELP if data.help == CALL_HELP else DATA_HELP
    return mixed(op, f"{why} ({data.op} at {data.where})", help=help)


def differs_by_place(op: Operation, classes: Sequence[Class], found: Meeting) -> Reason | None:
    """Data that is not the same at all places along which the examples beside it lie, or that a
    mask of nobody chooses at some of them.
    """
    for i, known in enumerate(classes):
        data = data_in(known)
        if data and not meets_alike(op.operands[i], i, found):
            return data
    chosen = _chosen_data(op, classes)
    return chosen if chosen and not meets_alike(op.operands[0], 0, found) else None


def _chosen_data(op: Operation, classes: Sequence[Class]) -> Reason | None:
    """Data beside which nobody's truths choose."""
    if op.name != "stablehlo.select" or not is_shared(classes[0]):
        return None
    return next((data for c in classes[1:] if is_shared(c) and (data := data_in(c))), None)


def differs_beside(owners: Owners, op: Operation, classes: Sequence[Class], number: int) -> bool:
    """Whether a sum is not the same at all places along which the examples beside it lie."""
    pairs = zip(classes, op.operands, strict=True)
    labels = [c.labels if isinstance(c, Owned) else owners.nobodys(v).labels for c, v in pairs]
    found = meeting(owners, op, labels, owners.steps)
    return found is None or not meets_alike(op.operands[number], number, found)


def meets_alike(value: Value, number: int, found: Meeting) -> bool:
    """Whether an operand is the same at all places along which what meets it has other owners."""
    others = [x for k, x in enumerate(found.frame.owners) if k != number]
    if not others:
        return True
    digits = met_digits(value, number, found, reduce(join, others))
    return all(is_uniform(value, along, size) for along, size in digits)


def met_digits(
    value: Value, number: int, found: Meeting, owners: Numbers
) -> list[tuple[PerExample, int]]:
    """The digits of an operand along which these owners vary, each with its size."""
    digits: list[tuple[PerExample, int]] = []
    for dim, factors in enumerate(found.rule.operands[number]):
        length, before = mlir.shape(value)[dim], 1
        if not counts_by(found.rule, factors, length):
            continue
        axes = [axis for f in factors for axis in found.frame.axes[f]]
        sizes = [size for f in factors for size in found.frame.digits[f]]
        for axis, size in zip(axes, sizes, strict=True):
            if owners.shape[axis] > 1:
                after = length // before // size
                digits.append((PerExample(dim, before, after), size))
            before *= size
    return digits


def differs_by_step(
    owners: Owners, op: Operation, classes: Sequence[Class], labels: Numbers
) -> Reason | None:
    """Data that may differ from step to step, or is chosen at some, in a loop whose steps have
    examples of their own.

    `labels`: owners with step axes in front.
    """
    steps = labels.shape[: owners.steps]
    for value, known in zip(op.operands, classes, strict=False):
        data = data_in(known)
        if data and _differs_at(owners, value, steps):
            return data
    chosen = _chosen_data(op, classes)
    return chosen if chosen and _differs_at(owners, op.operands[0], steps) else None


def differs_by_index(
    owners: Owners, op: Operation, classes: Sequence[Class], labels: Labels
) -> Reason | None:
    """Data that is looked at, or says where to look or put, otherwise for one example than for
    another.

    `labels`: of the result of a gather, scatter, slice or update at indices.
    """
    for i, known in enumerate(classes):
        data, value = data_in(known), op.operands[i]
        if data is None or not (labels.varies or labels.is_conflicting):
            continue
        is_index = i >= FIRST_INDEX.get(op.name, 0) and not mlir.is_inexact(value)
        if labels.is_conflicting and is_index:
            return data
        shape = mlir.shape(value)
        dims = range(len(shape)) if is_index else _numbered_dims(owners, op, i)
        if not all(is_uniform(value, PerExample(d), shape[d]) for d in dims if shape[d] > 1):
            return data
    return None


def differs_where_put(
    owners: Owners, op: Operation, classes: Sequence[Class], labels: Labels
) -> Reason | None:
    """Data that is put at the places of some examples only, or otherwise at some than at others.

    `labels`: of the result of an update or scatter.
    """
    number = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": 2}.get(op.name)
    data = data_in(classes[number]) if number else None
    if number is None or data is None:
        return None
    update, shape = op.operands[number], mlir.shape(op.results[0])
    sizes = mlir.shape(update)
    for dim, spot in enumerate(spots_of(owners, op)):
        if not labels.varies_along(dim):
            continue
        if spot is None or (not isinstance(spot, int) and np.unique(spot).size < shape[dim]):
            return data
        steps = [] if isinstance(spot, int) else spot.shape[: owners.steps]
        if _differs_at(owners, update, steps):
            return data
        moving = [spot] if isinstance(spot, int) else _moving_dims(spot, len(sizes))
        if not all(is_uniform(update, PerExample(k), sizes[k]) for k in moving):
            return data
    return None


def _differs_at(owners: Owners, value: Value, sizes: Sequence[int]) -> bool:
    """Whether a value may differ from step to step; `sizes`: of the step axes, 1 where a step is
    none.
    """
    loops = [loop for loop, size in zip(owners.loops, sizes, strict=False) if size > 1]
    return any(varies(owners.varying, loop.op, value) for loop in loops)


def _moving_dims(places: Places, rank: int) -> list[int]:
    """The dimensions of an update along which known places, [*steps, *update], vary."""
    own = places.shape[places.ndim - rank :]
    return [dim for dim, size in enumerate(own) if size > 1]


# Of moves at indices, from which operand on these are; of one that is not here, all may be.
FIRST_INDEX = {
    "stablehlo.gather": 1,
    "stablehlo.scatter": 1,
    "stablehlo.dynamic_slice": 1,
    "stablehlo.dynamic_update_slice": 2,
}
# Of these, those that look at the same places of an operand for all examples, or at none.
AT_GIVEN_PLACES = {
    "stablehlo.scatter",
    "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice",
}


def _numbered_dims(owners: Owners, op: Operation, operand: int) -> list[int]:
    """The dimensions along which an op may look at numbers that no example gives."""
    if op.name in AT_GIVEN_PLACES:
        return []
    if op.name != "stablehlo.gather":
        return list(range(len(mlir.shape(op.operands[operand]))))
    if operand > 0:
        return []
    numbers = gather_numbers(op)
    columns, vector_dim = list(numbers.start_index_map), int(numbers.index_vector_dim)
    known = (column(owners, op.operands[1], k, vector_dim) for k in range(len(columns)))
    return [dim for dim, x in zip(columns, known, strict=True) if x is not None]
