"""Placements: labels of places, taken back to what a value is made of, and on to what is made of
it.

    %r = broadcast %m : [D] -> [B, D], places by row      =>  %m: the same place everywhere
    %s = slice %r [0:2], places by row                    =>  %r: rows 0 and 1, elsewhere none

Numbers are equal where the same examples are met; of several places in one, a new number stands for
all of them together.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from hlo_surgery.passes.dataflow.sharding_rules import UPDATE, Rule
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.factors import Dims, counts_by, on_factors, rule_of
from hlo_surgery.passes.owners.labelling.digits import regrouped
from hlo_surgery.passes.owners.labelling.frames import Frame, framed
from hlo_surgery.passes.owners.labelling.indexed_moves import gathered_from
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import (
    MOST_LABELS,
    Labels,
    Numbers,
    nobodys,
    owned_alone,
)
from hlo_surgery.passes.owners.labelling.moves import BOUNDS, LABEL_MOVES, taken
from hlo_surgery.passes.owners.owners import Owners

GATHER = "stablehlo.gather"


def told_apart(numbers: Numbers, lost: Sequence[int]) -> Numbers:
    """A number for all that lies along some axes, equal where the same lies there; these axes stay,
    with size 1. One that is alone there is kept; new ones are no example's.
    """
    if all(numbers.shape[axis] == 1 for axis in lost):
        return numbers
    kept = [axis for axis in range(numbers.ndim) if axis not in lost]
    rows = numbers.transpose([*kept, *lost]).reshape((_size(numbers, kept), -1))
    classes, first = dict[bytes, int](), max(MOST_LABELS, int(numbers.max(initial=0)) + 1)
    found = [
        int(row[0])
        if (row == row[0]).all()
        else classes.setdefault(row.tobytes(), first + len(classes))
        for row in rows
    ]
    shape = [1 if axis in lost else size for axis, size in enumerate(numbers.shape)]
    return np.array(found, np.int32).reshape(shape)


def at_every_step(labels: Labels) -> Labels:
    """A number for what an element has at all steps of the loops around, equal where that is the
    same.
    """
    steps = labels.steps
    if not steps:
        return labels
    numbers = told_apart(labels.owners, range(steps))
    return Labels(labels.digits, numbers.reshape(numbers.shape[steps:]))


def in_order_of_first(numbers: Numbers) -> Numbers:
    """Numbers that are equal where these are, whichever these are: that which occurs first is 0.
    There are finitely many, however often places are told apart anew. What has no place has none.
    """
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(first))
    return np.where(numbers < 0, numbers, ranks[inverse].reshape(numbers.shape)).astype(np.int32)


def narrowed(numbers: Numbers) -> Numbers:
    """Axes along which all is the same get size 1."""
    for axis, size in enumerate(numbers.shape):
        first = numbers.take([0], axis) if size > 1 else numbers
        numbers = first if (numbers == first).all() else numbers
    return numbers


def _size(numbers: Numbers, axes: Sequence[int]) -> int:
    return int(np.prod([numbers.shape[axis] for axis in axes], dtype=np.int64))


def over_operand(rule: Rule, frame: Frame, numbers: Numbers, factors: Dims, value: Value) -> Labels:
    """Numbers over all factors as places of one operand or result."""
    pairs = zip(factors, mlir.shape(value), strict=True)
    dims = [own if counts_by(rule, own, size) else size for own, size in pairs]
    kept = {f for own in dims if not isinstance(own, int) for f in own}
    lost = [axis for f, axes in frame.axes.items() if f not in kept for axis in axes]
    return frame.result(told_apart(numbers, lost), dims)


def places_behind(
    owners: Owners, op: Operation, number: int, places: Labels
) -> Iterator[tuple[Value, Labels]]:
    """The operands, each with the places that its elements have in a result of the op."""
    if op.name == GATHER:
        yield op.operands[0], places_taken(owners, op, places)
        yield from list(_by_rule_behind(op, number, places))[1:]
    elif op.name == "stablehlo.reshape":
        yield op.operands[0], regrouped(places, mlir.shape(op.operands[0]))
    elif op.name == "stablehlo.slice":
        yield op.operands[0], _before_slice(op, places)
    elif op.name == "stablehlo.reverse":
        yield op.operands[0], LABEL_MOVES[op.name](op, [places], len(places.examples))
    elif op.name == "stablehlo.concatenate":
        yield from _before_concatenate(op, places)
    else:
        yield from _by_rule_behind(op, number, places)


def places_taken(owners: Owners, op: Operation, places: Labels) -> Labels:
    """The places, in what a gather takes over all steps of the loops around it, of what it is taken
    from. An element that lies at several has none.
    """
    outer = owners.loops
    loops = (counted_loop(owners, loop) for loop in reversed(mlir.enclosing_loops(op)))
    owners.loops = [loop for loop in loops if loop]
    try:
        taken_from = gathered_from(owners, op, places)
    finally:
        owners.loops = outer
    return at_every_step(owned_alone(taken_from))


def _before_slice(op: Operation, places: Labels) -> Labels:
    bounds = zip(*(integers(op, name) for name in BOUNDS), strict=True)
    for dim, bound in enumerate(bounds):
        source = np.full(mlir.shape(op.operands[0])[dim], -1, np.int64)
        source[slice(*bound)] = np.arange(places.shape[dim])
        if (source < 0).any():
            places = taken(places, dim, source)
    return places


def _before_concatenate(op: Operation, places: Labels) -> Iterator[tuple[Value, Labels]]:
    dim, start = integer(op, "dimension"), 0
    for value in op.operands:
        size = mlir.shape(value)[dim]
        yield value, taken(places, dim, np.arange(start, start + size))
        start += size


def _by_rule_behind(op: Operation, number: int, places: Labels) -> Iterator[tuple[Value, Labels]]:
    rule = rule_of(op, shared_matrix=False)
    if rule is None or _varies_along_blocked(rule, rule.results[number], places):
        return
    frame = framed([on_factors(rule, rule.results[number], places)], rule.sizes, 0)
    for value, factors in zip(op.operands, rule.operands, strict=True):
        if mlir.shape(value):
            yield value, over_operand(rule, frame, frame.owners[0], factors, value)


def keeps_rows(op: Operation, number: int, places: Labels) -> bool:
    """Whether an op keeps the rows of an operand in their order, in one of its results. What a loop
    stacks it took from wherever it took each step's part.
    """
    first = 1 if op.name == UPDATE and mlir.enclosing_loops(op) else 0
    rows = list(_by_rule_behind(op, number, places))
    of_data = rows[first:2] if op.name == UPDATE else rows[:1] if op.name == GATHER else rows
    return op.name == "stablehlo.reshape" or any(own.varies for _, own in of_data)


def _varies_along_blocked(rule: Rule, result: Dims, places: Labels) -> bool:
    dims = enumerate(result)
    return any(places.varies_along(dim) and rule.blocked & set(own) for dim, own in dims)


def places_ahead(
    op: Operation, number: int, places: Labels
) -> Iterator[tuple[Value, Labels | None]]:
    """The results, with the places of their elements; None where one is made of several."""
    for result, own, is_of_several in _made_ahead(op, number, places):
        yield result, None if is_of_several else own


def places_of_sets(op: Operation, number: int, places: Labels) -> Iterator[tuple[Value, Labels]]:
    """The results, with a number for each set of places that an element is made of, where all are
    known.
    """
    yield from ((result, own) for result, own, _ in _made_ahead(op, number, places) if own)


def _made_ahead(
    op: Operation, number: int, places: Labels
) -> Iterator[tuple[Value, Labels | None, bool]]:
    """The results, with numbers of the places that their elements are made of, and whether these
    are several.
    """
    if op.name in LABEL_MOVES:
        operands = [nobodys(mlir.shape(v)) for v in op.operands]
        operands[number] = places
        yield op.results[0], LABEL_MOVES[op.name](op, operands, len(places.examples)), False
        return
    rule = rule_of(op, shared_matrix=False)
    if rule is None:
        return
    placed = on_factors(rule, rule.operands[number], places)
    frame = framed([placed], rule.sizes, 0)
    exact = _is_counted(rule, number, places)
    for result, factors in zip(op.results, rule.results, strict=True):
        own = over_operand(rule, frame, frame.owners[0], factors, result) if exact else None
        yield result, own, not exact or _joins_several(rule, frame, factors, result)


def _is_counted(rule: Rule, number: int, places: Labels) -> bool:
    """Whether all dimensions along which places differ are counted by factors."""
    dims = enumerate(rule.operands[number])
    return all(
        counts_by(rule, own, places.shape[dim]) or not places.varies_along(dim) for dim, own in dims
    )


def _joins_several(rule: Rule, frame: Frame, factors: Dims, result: Value) -> bool:
    pairs = zip(factors, mlir.shape(result), strict=True)
    kept = {f for own, size in pairs if counts_by(rule, own, size) for f in own}
    lost = [axis for f, axes in frame.axes.items() if f not in kept for axis in axes]
    return any(frame.owners[0].shape[axis] > 1 for axis in lost)
