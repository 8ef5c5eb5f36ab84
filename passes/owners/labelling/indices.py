"""Indices: the numbers of integers at every step of the counted loops around them.

    while %i < 4 { %s = dynamic_slice %x, 3 - %i }     3 - %i: [3, 2, 1, 0]

Numpy computes them for all steps at once, as [*steps, *shape], an axis for each counted loop around
the place where the value is made, of size 1 where its step does not matter. None is what only a run
tells.
"""

import math
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer
from hlo_surgery.passes.ir.constants import evaluate
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.integer_ops import RULES, Numbers, Undefined
from hlo_surgery.passes.owners.labelling.labels import Places
from hlo_surgery.passes.owners.owners import (
    CountedLoop,
    Owners,
)

MOST_NUMBERS = 1 << 20


def counted_loop(owners: Owners, op: Operation) -> CountedLoop | None:
    """A loop with the number of its trips; None where that is not known."""
    key = op.results[0]
    if key not in owners.counted:
        counters = counter_values(op)
        trips = len(next(iter(counters.values()))) if counters else 0
        known = counters is not None and 0 < trips <= MOST_NUMBERS
        owners.counted[key] = CountedLoop(op, trips, counters or {}) if known else None
    return owners.counted[key]


def places(owners: Owners, value: Value) -> Places | None:
    """The numbers of an integer value, for the loops around what is classified now:
    [*steps, *shape].
    """
    numbers = integers_of(owners, value)
    if numbers is None:
        return None
    return _within(numbers, len(mlir.shape(value)), owners.steps).astype(np.int64)


def _within(numbers: Numbers, rank: int, steps: int) -> Numbers:
    """The same inside more loops."""
    outer = numbers.ndim - rank
    sizes = numbers.shape
    return numbers.reshape((*sizes[:outer], *[1] * (steps - outer), *sizes[outer:]))


def integers_of(owners: Owners, value: Value) -> Numbers | None:
    """The numbers of a value, for the counted loops around the place where it is made."""
    pending = [value]
    while pending:
        current = pending.pop()
        missing = [v for v in _made_from(current) if v not in owners.numbers]
        if current in owners.numbers:
            continue
        if missing:
            pending += [current, *missing]
            continue
        numbers = None if mlir.is_inexact(current) else _integers(owners, current)
        rank = len(mlir.shape(current))
        owners.numbers[current] = None if numbers is None else _narrowed(numbers, rank)
    return owners.numbers[value]


def _made_from(value: Value) -> list[Value]:
    """The values whose numbers tell those of this one."""
    op = mlir.defining_operation(value)
    if op is None or mlir.is_inexact(value):
        return []
    if op.name != "stablehlo.while":
        return list(op.operands) if op.name in RULES else []
    number = mlir.results(op).index(value)
    write = _last_write(op, number)
    entries = list(write.operands)[1:] if write is not None else []
    return [op.operands[number], *entries]


def _last_write(loop: Operation, number: int) -> Operation | None:
    """The update that a loop's carry is at each step, if it is one of the carry itself."""
    body = loop.regions[1].blocks[0]
    op = mlir.defining_operation(mlir.operands(mlir.return_operation(body))[number])
    writes = op is not None and op.name == "stablehlo.dynamic_update_slice"
    return op if op is not None and writes and op.operands[0] == body.arguments[number] else None


def _narrowed(numbers: Numbers, rank: int) -> Numbers:
    """Axes of steps that do not matter get size 1."""
    for axis in range(numbers.ndim - rank):
        first = numbers.take([0], axis)
        numbers = first if (numbers == first).all() else numbers
    return numbers


def _integers(owners: Owners, value: Value) -> Numbers | None:
    op = mlir.defining_operation(value)
    if op is None:
        return _counter(owners, value)
    if op.name == "stablehlo.while":
        return _stack(owners, op, mlir.results(op).index(value))
    if op.name in ("stablehlo.constant", "stablehlo.iota"):
        return evaluate(value)
    return _by_rule(owners, op) if op.name in RULES else None


def _by_rule(owners: Owners, op: Operation) -> Numbers | None:
    operands = [owners.numbers[v] for v in op.operands]
    known = [x for x in operands if x is not None]
    if len(known) < len(operands):
        return None
    ranks = [len(mlir.shape(v)) for v in op.operands]
    steps = max(x.ndim - rank for x, rank in zip(known, ranks, strict=True))
    inside = [_within(x, rank, steps) for x, rank in zip(known, ranks, strict=True)]
    times = math.prod(np.broadcast_shapes(*(x.shape[:steps] for x in inside)))
    largest = max(math.prod(mlir.shape(v)) for v in (op.results[0], *op.operands))
    if times * largest > MOST_NUMBERS:
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(RULES[op.name](op, steps, *inside)).astype(dtype_of(op.results[0]))
    except Undefined:
        return None


def _counter(owners: Owners, value: Value) -> Numbers | None:
    op = cast(Any, value.owner).owner.operation
    loop = counted_loop(owners, op) if op.name == "stablehlo.while" else None
    if loop is None or value not in loop.counters:
        return None
    outer = [around for around in mlir.enclosing_loops(op) if counted_loop(owners, around)]
    return np.asarray(loop.counters[value]).reshape([1] * len(outer) + [-1])


def _stack(owners: Owners, op: Operation, number: int) -> Numbers | None:
    """What a loop writes entry by entry, as JAX does with counters that a backward pass reads."""
    loop, write = counted_loop(owners, op), _last_write(op, number)
    if loop is None or write is None or mlir.enclosing_loops(op):
        return None
    values = [op.operands[number], *list(write.operands)[1:]]
    known = [x for v in values if (x := owners.numbers[v]) is not None]
    if len(known) < len(values):
        return None
    pairs = zip(known[1:], values[1:], strict=True)
    entries, *starts = (_at_steps(x, len(mlir.shape(v)), loop.trips) for x, v in pairs)
    return _written(known[0], entries, starts)


def _at_steps(numbers: Numbers, rank: int, trips: int) -> Numbers:
    """[trips, *shape], of what is made inside one loop or outside of it."""
    inside = _within(numbers, rank, 1)
    return np.broadcast_to(inside, (trips, *inside.shape[1:]))


def _written(start: Numbers, entries: Numbers, starts: list[Numbers]) -> Numbers:
    """An array after each step's entry is put at its place, clamped as StableHLO does."""
    found = start.copy()
    for step, entry in enumerate(entries):
        spots: list[slice] = []
        for at, length, size in zip(starts, found.shape, entry.shape, strict=True):
            first = int(np.clip(at[step], 0, length - size))
            spots.append(slice(first, first + size))
        found[tuple(spots)] = entry
    return found


def column(owners: Owners, indices: Value, number: int, vector_dim: int) -> Places | None:
    """One column of a gather's or scatter's indices: [*steps, *batch].

    Of a concatenation only the piece that holds the column must be known.
    """
    op = mlir.defining_operation(indices)
    joins = op is not None and op.name == "stablehlo.concatenate"
    if op is not None and joins and integer(op, "dimension") == vector_dim:
        for piece in op.operands:
            length = mlir.shape(piece)[vector_dim]
            if number < length:
                return column(owners, piece, number, vector_dim)
            number -= length
    numbers = places(owners, indices)
    if numbers is None or vector_dim == len(mlir.shape(indices)):
        return numbers
    return numbers.take([number], owners.steps + vector_dim).squeeze(owners.steps + vector_dim)
