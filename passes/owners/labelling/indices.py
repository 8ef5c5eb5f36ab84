"""Indices: the numbers of integers at every step of the counted loops around them.

    while %i < 4 { %s = dynamic_slice %x, 3 - %i }     3 - %i: [3, 2, 1, 0]

Numpy computes them for all steps at once, as [*steps, *shape], an axis for each counted loop around
the place where the value is made, of size 1 where its step does not matter. Of what only a run
tells there may be bounds; a number is known where its bounds are one.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import scatter_numbers
from hlo_surgery.passes.ir.constants import applied, evaluate
from hlo_surgery.passes.ir.element_types import is_static_array
from hlo_surgery.passes.ir.linearity import added_results, overwrites
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.bounds import (
    Bounds,
    all_known,
    narrowed,
    numbers_within,
    of_type,
    tell_nothing,
    within,
)
from hlo_surgery.passes.owners.labelling.combined_numbers import COMBINED, combined_from
from hlo_surgery.passes.owners.labelling.conditions import chosen
from hlo_surgery.passes.owners.labelling.integer_ops import RULES, Numbers
from hlo_surgery.passes.owners.labelling.interval_ops import made_of
from hlo_surgery.passes.owners.labelling.labels import Places
from hlo_surgery.passes.owners.owners import (
    CountedLoop,
    Owners,
)

MOST_NUMBERS = 1 << 20
SCATTER = "stablehlo.scatter"
# What takes known numbers from known places, or puts them there.
APPLIED = frozenset(["stablehlo.gather", SCATTER])
# In a wider type, numbers of which nothing is known have the bounds of their own.
CONVERT = "stablehlo.convert"


def counted_loop(owners: Owners, op: Operation) -> CountedLoop | None:
    """A loop with the number of its trips; None where that is not known."""
    key = op.results[0]
    if key not in owners.counted:
        counters = counter_values(op)
        trips = len(next(iter(counters.values()))) if counters else 0
        known = counters is not None and 0 < trips <= MOST_NUMBERS
        owners.counted[key] = CountedLoop(op, trips, counters or {}) if known else None
    return owners.counted[key]


def column(owners: Owners, indices: Value, number: int, vector_dim: int) -> Places | None:
    """One column of a gather's or scatter's indices, of which others may not be known:
    [*steps, *batch].
    """
    found = column_bounds(owners, indices, number, vector_dim)
    return None if found is None else found.numbers


def column_bounds(owners: Owners, indices: Value, number: int, vector_dim: int) -> Bounds | None:
    """The bounds of one column of a gather's or scatter's indices: [*steps, *batch]."""
    found = bounds_of(owners, indices)
    if found is None:
        return None
    rank, axis = len(mlir.shape(indices)), owners.steps + vector_dim
    inside = within(found, rank, owners.steps)
    if vector_dim < rank:
        inside = inside.each(lambda x: x.take([number], axis).squeeze(axis))
    return inside.each(_as_places)


def _as_places(numbers: Numbers) -> Places:
    """In 64 bits with a sign; beyond these no array has a place."""
    if numbers.dtype == np.uint64:
        numbers = np.minimum(numbers, np.iinfo(np.int64).max)
    return numbers.astype(np.int64)


def integers_of(owners: Owners, value: Value) -> Numbers | None:
    """The numbers of a value, for the counted loops around the place where it is made."""
    found = bounds_of(owners, value)
    return None if found is None else found.numbers


def bounds_of(owners: Owners, value: Value) -> Bounds | None:
    """The bounds of a value, for the counted loops around the place where it is made; None where
    no more is known than its type.
    """
    pending = [value]
    while pending:
        current = pending.pop()
        missing = [v for v in _asked_first(current) if v not in owners.numbers]
        if current in owners.numbers:
            continue
        if missing:
            pending += [current, *missing]
            continue
        numbers = None if mlir.is_inexact(current) else _integers(owners, current)
        rank = len(mlir.shape(current))
        owners.numbers[current] = None if numbers is None else narrowed(numbers, rank)
    return owners.numbers[value]


def _asked_first(value: Value) -> Sequence[Value]:
    """The values whose numbers may tell those of this one."""
    op = mlir.defining_operation(value)
    is_applied = op is not None and op.name in APPLIED and not mlir.is_inexact(value)
    return list(op.operands) if op is not None and is_applied else _made_from(value)


def _made_from(value: Value) -> list[Value]:
    """The values whose numbers tell those of this one."""
    op = mlir.defining_operation(value)
    if op is None or mlir.is_inexact(value):
        return []
    number = mlir.results(op).index(value)
    if op.name in COMBINED:
        return combined_from(op, number)
    if op.name != "stablehlo.while":
        return list(op.operands) if op.name in RULES else []
    write = _last_write(op, number)
    entries = list(write.operands)[1:] if write is not None else []
    return [op.operands[number], *entries]


def _last_write(loop: Operation, number: int) -> Operation | None:
    """The update that a loop's carry is at each step, if it is one of the carry itself."""
    body = loop.regions[1].blocks[0]
    op = mlir.defining_operation(mlir.operands(mlir.return_operation(body))[number])
    writes = op is not None and op.name == "stablehlo.dynamic_update_slice"
    return op if op is not None and writes and op.operands[0] == body.arguments[number] else None


def _integers(owners: Owners, value: Value) -> Bounds | None:
    op = mlir.defining_operation(value)
    if op is None:
        return _counter(owners, value)
    if op.name == "stablehlo.while":
        return _stack(owners, op, mlir.results(op).index(value))
    if op.name in ("stablehlo.constant", "stablehlo.iota"):
        numbers = evaluate(value)
        return None if numbers is None else all_known(numbers)
    if op.name in APPLIED and (numbers := _applied(owners, op)) is not None:
        return all_known(numbers)
    return _by_rule(owners, op, value) if _made_from(value) else None


def _applied(owners: Owners, op: Operation) -> Numbers | None:
    """What an op makes of operands of which all is known, at whatever step; None where that is not
    so, or where a scatter may put one row or another.
    """
    given = [owners.numbers[v] for v in op.operands]
    known = [x.numbers for x in given if x is not None and x.are_all_known]
    numbers = [x for x in known if x is not None and x.dtype.kind == "i"]
    if len(numbers) < len(given) or len(op.results) > 1:
        return None
    fits = all(x.shape == mlir.shape(v) for x, v in zip(numbers, op.operands, strict=True))
    is_small = math.prod(mlir.shape(op.results[0])) <= MOST_NUMBERS
    is_told = op.name != SCATTER or _is_in_any_order(op)
    return applied(op, numbers) if fits and is_small and is_told else None


def _is_in_any_order(scatter: Operation) -> bool:
    """Whether a scatter adds numbers up, or puts one row."""
    shape, vector_dim = mlir.shape(scatter.operands[1]), scatter_numbers(scatter).index_vector_dim
    rows = math.prod(size for dim, size in enumerate(shape) if dim != vector_dim)
    return all(added_results(scatter)) or (rows == 1 and overwrites(scatter))


def _by_rule(owners: Owners, op: Operation, value: Value) -> Bounds | None:
    operands = _made_from(value)
    known = [(x, len(mlir.shape(v))) for v in operands if (x := owners.numbers[v]) is not None]
    leads = [x.low.shape[: x.low.ndim - rank] for x, rank in known]
    if not leads and not (op.name == CONVERT and _is_of_integers(op.operands[0])):
        return None
    steps = max(map(len, leads), default=0)
    times = math.prod(max(sizes) for sizes in zip(*(_padded(x, steps) for x in leads), strict=True))
    largest = max(math.prod(mlir.shape(v)) for v in (value, *operands))
    if times * largest > MOST_NUMBERS:
        return None
    outside = partial(_at_steps, owners, steps)
    found = made_of(op, mlir.results(op).index(value), steps, [outside(v) for v in operands])
    if op.name != "stablehlo.select":
        return found
    chose = chosen(op, steps, outside, found or outside(value))
    return None if tell_nothing(chose) else chose


def _at_steps(owners: Owners, steps: int, value: Value) -> Bounds:
    """The bounds of a value inside so many loops; those of its type if it lies deeper."""
    found, rank = owners.numbers.get(value), len(mlir.shape(value))
    if found is None or found.low.ndim - rank > steps:
        found = of_type(value, 0)
    return within(found, rank, steps)


def _is_of_integers(value: Value) -> bool:
    return is_static_array(value) and not mlir.is_inexact(value)


def _padded(lead: Sequence[int], steps: int) -> tuple[int, ...]:
    return (*lead, *[1] * (steps - len(lead)))


def _counter(owners: Owners, value: Value) -> Bounds | None:
    op = cast(Any, value.owner).owner.operation
    loop = counted_loop(owners, op) if op.name == "stablehlo.while" else None
    if loop is None or value not in loop.counters:
        return None
    return all_known(np.asarray(loop.counters[value]).reshape([1] * _outer(owners, op) + [-1]))


def _outer(owners: Owners, loop: Operation) -> int:
    """How many counted loops are around one."""
    return sum(counted_loop(owners, around) is not None for around in mlir.enclosing_loops(loop))


def _stack(owners: Owners, op: Operation, number: int) -> Bounds | None:
    """What a loop writes entry by entry, as JAX does with indices that a backward pass reads."""
    loop, write = counted_loop(owners, op), _last_write(op, number)
    if loop is None or write is None:
        return None
    outer, first, piece = _outer(owners, op), op.operands[number], write.operands[1]
    start, entry = owners.numbers[first], owners.numbers[piece]
    found = [_spots(owners, v, outer, loop.trips) for v in list(write.operands)[2:]]
    spots = [x for x in found if x is not None]
    if start is None or entry is None or len(spots) < len(found):
        return None
    begun = within(start, len(mlir.shape(first)), outer)
    entries = within(entry, len(mlir.shape(piece)), outer + 1)
    times = math.prod(np.broadcast_shapes(begun.low.shape[:outer], entries.low.shape[:outer]))
    if times * math.prod(mlir.shape(first)) > MOST_NUMBERS:
        return None
    return Bounds(
        _written(begun.low, entries.low, spots, loop.trips),
        _written(begun.high, entries.high, spots, loop.trips),
    )


def _spots(owners: Owners, index: Value, outer: int, trips: int) -> Numbers | None:
    """Where a loop's entries start, [trips], if the steps of loops around it do not matter."""
    found = integers_of(owners, index)
    inside = None if found is None else numbers_within(found, 0, outer + 1)
    alike = inside is not None and all(size == 1 for size in inside.shape[:outer])
    return np.broadcast_to(inside.ravel(), (trips,)) if inside is not None and alike else None


def _written(start: Numbers, entries: Numbers, starts: list[Numbers], trips: int) -> Numbers:
    """An array, [*outer, *shape], after each step's entry, [*outer, steps, *shape], is put at its
    place, clamped as StableHLO does.
    """
    outer = entries.ndim - 1 - len(starts)
    lead = np.broadcast_shapes(start.shape[:outer], entries.shape[:outer])
    found = np.broadcast_to(start, (*lead, *start.shape[outer:])).copy()
    sizes = entries.shape[outer + 1 :]
    for step in range(trips):
        spots: list[slice] = []
        for at, length, size in zip(starts, found.shape[outer:], sizes, strict=True):
            first = int(np.clip(at[step], 0, length - size))
            spots.append(slice(first, first + size))
        found[(..., *spots)] = entries.take(min(step, entries.shape[outer] - 1), outer)
    return found
