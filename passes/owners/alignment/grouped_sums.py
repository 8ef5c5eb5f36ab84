"""Grouped sums: sums of which each element is one over some of the examples, and over which.

    %m = reduce add (reshape %l : [4] -> [2, 2]) : [2]      %l: of owners 0 .. 3
        =>  an element for examples 0 and 1, and one for 2 and 3

What nobody owns and meets such a sum lies beside groups of examples as a mask lies beside rows.
Places are labels: a number for each element, equal where the same examples are summed.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.owners.alignment.constant_parts import sums_of
from hlo_surgery.passes.owners.alignment.placements import (
    at_every_step,
    narrowed,
    over_operand,
    places_of_sets,
)
from hlo_surgery.passes.owners.alignment.positions import Search, if_uneven
from hlo_surgery.passes.owners.classes import (
    Owned,
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.factors import Meeting, meeting
from hlo_surgery.passes.owners.labelling.digits import all_whole
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels, Numbers, Places
from hlo_surgery.passes.owners.labelling.landing import cleared, landed
from hlo_surgery.passes.owners.labelling.spots import UPDATES, along, spots_of
from hlo_surgery.passes.owners.owners import Owners

UPDATE = "stablehlo.dynamic_update_slice"


def grouped_sums(owners: Owners, block: Block) -> dict[Value, Labels]:
    """The places of the elements of all sums of which some are over other examples than others."""
    found: dict[Value, Labels] = {}
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        if not any(is_sum(owners.of(r)) for r in op.results):
            continue
        flows = op.name in mlir.CONTROL_FLOW
        for result, places in _stacked(owners, op) if flows else _placed(owners, op, found):
            numbers = narrowed(places.owners)
            if numbers.size > 1 and is_sum(owners.of(result)):
                found.setdefault(result, Labels(places.digits, numbers))
    return found


def _stacked(owners: Owners, loop: Operation) -> Iterator[tuple[Value, Labels]]:
    """Places of what a loop over parts stacks: a number for each step's."""
    if loop.results[0] not in owners.part_loops:
        return
    body = loop.regions[1].blocks[0]
    returned = mlir.operands(mlir.return_operation(body))
    for result, carry, value in zip(loop.results, body.arguments, returned, strict=True):
        op = mlir.defining_operation(value)
        if op is not None and op.name == UPDATE and op.operands[0] == carry:
            pairs = zip(mlir.shape(carry), mlir.shape(op.operands[1]), strict=True)
            yield result, _numbered([size if size != part else 1 for size, part in pairs], result)


def _placed(
    owners: Owners, op: Operation, known: dict[Value, Labels]
) -> Iterator[tuple[Value, Labels]]:
    for number, value in enumerate(op.operands):
        if value in known and op.name == UPDATE:
            yield from _updated(owners, op, number, known[value])
        elif value in known:
            yield from places_of_sets(op, number, known[value])
    if op.name == "stablehlo.concatenate":
        yield op.results[0], _side_by_side(owners, op)
    if op.name == "stablehlo.scatter" and (sets := _landed_sets(owners, op)):
        yield op.results[0], sets
    classes = owners.at(op)
    labels = [known.labels for known in classes if isinstance(known, Owned)]
    if len(labels) == len(classes) and any(own.varies for own in labels):
        met = meeting(owners, op, labels, max(own.steps for own in labels))
        yield from _of_kept_rows(met) if met and met.keeps_rows() else ()
        yield from _of_weights(owners, met) if met else ()


def _updated(
    owners: Owners, op: Operation, number: int, places: Labels
) -> Iterator[tuple[Value, Labels]]:
    """Places behind an update at known places, of the update or of what it leaves."""
    result, spots = op.results[0], spots_of(owners, op)
    if mlir.enclosing_loops(op) or any(spot is None for spot in spots):
        return
    shape = mlir.shape(result)
    if number == 0:
        update = mlir.shape(op.operands[UPDATES[op.name][1]])
        yield result, cleared(0, places, update, spots, shape)
    else:
        yield result, landed(0, places, spots, shape)


def _of_kept_rows(met: Meeting) -> Iterator[tuple[Value, Labels]]:
    for result, factors in zip(met.op.results, met.rule.results, strict=True):
        places = over_operand(met.rule, met.frame, met.met, factors, result)
        yield result, at_every_step(places)


def _of_weights(owners: Owners, met: Meeting) -> Iterator[tuple[Value, Labels]]:
    """Places of what is summed with weights by example, as by a matrix that says what is whose: a
    number for each row of weights.
    """
    kept = {f for own in met.rule.results[0] for f in own} - met.rule.reduced
    for value, factors in zip(met.op.operands, met.rule.operands, strict=True):
        own = {f for dims in factors for f in dims} & kept
        if own and is_shared(owners.of(value)) and mlir.shape(value):
            places = over_operand(met.rule, met.frame, met.met, factors, value)
            if any(True for _ in if_uneven(Search(owners), value, at_every_step(places))):
                yield met.op.results[0], _numbered_along(met, own)


def _numbered_along(met: Meeting, factors: set[int]) -> Labels:
    """A number for each index along the dimensions that these factors count."""
    counted = [bool(factors & set(dims)) for dims in met.rule.results[0]]
    result = met.op.results[0]
    pairs = zip(mlir.shape(result), counted, strict=True)
    return _numbered([size if own else 1 for size, own in pairs], result)


def _numbered(sizes: list[int], value: Value) -> Labels:
    """A number for each place along the dimensions that have these sizes, and not 1."""
    numbers = np.arange(np.prod(sizes, dtype=np.int64), dtype=np.int32).reshape(sizes)
    return Labels(tuple((size,) for size in mlir.shape(value)), numbers)


def _side_by_side(owners: Owners, op: Operation) -> Labels:
    """Places of what is put together: a number for each part that is a sum over other examples."""
    dim, shape = integer(op, "dimension"), mlir.shape(op.results[0])
    examples = [_examples_in(owners, value) for value in op.operands]
    groups = [group for group in examples if group]
    numbers = [groups.index(group) if group else 0 for group in examples]
    sizes = [mlir.shape(value)[dim] for value in op.operands]
    lead = [1] * len(shape)
    lead[dim] = shape[dim]
    owners_along = np.repeat(np.array(numbers, np.int32), sizes).reshape(lead)
    return Labels(tuple((size,) for size in shape), owners_along)


def _landed_sets(owners: Owners, op: Operation) -> Labels | None:
    """Places of what a scatter at known places sums, as of segments: a number for each set of the
    examples.
    """
    known, shape = owners.of(op.operands[2]), mlir.shape(op.results[0])
    if not isinstance(known, Owned) or not is_shared(owners.of(op.operands[1])):
        return None
    if not shape or len(op.results) > 1 or mlir.enclosing_loops(op):
        return None
    rows, index = all_whole(known.labels).owners, list[Places]()
    for length, spot in zip(shape, spots_of(owners, op), strict=True):
        if spot is None:
            return None
        if isinstance(spot, int):
            stays = rows.shape[spot] == 1
            spot = np.zeros([1] * rows.ndim, np.int64) if stays else along(length, spot, rows.ndim)
        index.append(spot)
    numbers = _numbered_sets(rows, index, shape)
    return Labels(tuple((size,) for size in shape), numbers)


def _numbered_sets(rows: Numbers, index: list[Places], shape: tuple[int, ...]) -> Numbers:
    """A number for each set of owners that meet at a place; [*shape], of size 1 where nothing
    moves.
    """
    sizes = [length if x.size > 1 else 1 for x, length in zip(index, shape, strict=True)]
    moving = [x if size > 1 else np.zeros_like(x) for x, size in zip(index, sizes, strict=True)]
    every, *places = np.broadcast_arrays(rows, *moving)
    inside = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(places, sizes, strict=True)])
    flat = np.ravel_multi_index(tuple(p[inside] for p in places), tuple(sizes))
    if not flat.size:
        return np.full(sizes, NONE, np.int32)
    pairs = np.unique(np.stack([flat, every[inside]], 1), axis=0)
    starts = np.unique(pairs[:, 0], return_index=True)[1]
    numbers, known = np.full(sizes, NONE, np.int32), dict[bytes, int]()
    for pair in np.split(pairs, starts[1:]):
        group = pair[:, 1].tobytes()
        numbers.flat[pair[0, 0]] = known.setdefault(group, len(known))
    return numbers


def _examples_in(owners: Owners, value: Value) -> frozenset[int]:
    """The examples that are summed in a value."""
    sums = closure([value], partial(sums_of, owners))
    makers = [op for v in sums if (op := mlir.defining_operation(v))]
    parts = [owners.of(v) for op in makers for v in op.operands] + [owners.of(value)]
    return frozenset[int]().union(*(p.labels.examples for p in parts if isinstance(p, Owned)))
