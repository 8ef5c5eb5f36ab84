"""Row sums: what is in a value, behind moves that keep its elements, sums over rows of examples,
parts of them, and stacks that a loop writes.

    %s = reduce add %m over 3 rows : [D]      %u = reshape %s : [1, D]      =>  %m, 3 rows
    %r = dynamic_slice %stack at %i           %m: written at each step      =>  %m, 1 row
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Owned
from hlo_surgery.passes.owners.labelling.indices import counted_loop, integers_of
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.same_values import is_same_kind

REDUCE, DYNAMIC_SLICE = "stablehlo.reduce", "stablehlo.dynamic_slice"
SLICES = frozenset(["stablehlo.slice", DYNAMIC_SLICE])
UPDATE = "stablehlo.dynamic_update_slice"
RESHAPED = frozenset(["stablehlo.reshape", "stablehlo.broadcast_in_dim"])


def behind_sums(owners: Owners, one: Value, other: Value) -> tuple[Value, Value, float]:
    """What the rows are that are summed up in two values, as far as is needed to compare these, and
    how many times as many the first one has.
    """
    times = 1.0
    while not _are_moved_alike(one, other):
        first, second = _before(owners, one), _before(owners, other)
        if first is None and second is None:
            break
        one, rows = first or (one, 1)
        other, others = second or (other, 1)
        times *= rows / others
    return one, other, times


def _are_moved_alike(one: Value, other: Value) -> bool:
    """Whether two values are made by the same move, if of different sizes."""
    op, twin = mlir.defining_operation(one), mlir.defining_operation(other)
    if op is None or twin is None:
        return False
    return op.name in RESHAPED and is_same_kind(op, twin)


def rows_summed(owners: Owners, op: Operation, number: int) -> float:
    """How many elements of an operand an op adds up in one; nobody's among examples' do not count,
    as they are in no example's share.
    """
    known = owners.of(op.operands[number])
    count, sums = (math.prod(mlir.shape(v)) for v in (op.operands[number], op.results[0]))
    owned = float((known.labels.owners != NONE).mean()) if isinstance(known, Owned) else 1.0
    return count / max(sums, 1) * (owned or 1.0)


def _before(owners: Owners, value: Value) -> tuple[Value, float] | None:
    bare = behind_barriers(value)
    if bare != value:
        return bare, 1
    op = mlir.defining_operation(value)
    if op is None:
        return None
    if op.name in RESHAPED and ones_apart(op.operands[0]) == ones_apart(value):
        return op.operands[0], 1
    if op.name == REDUCE and _sums_rows(owners, op):
        return op.operands[0], rows_summed(owners, op, 0)
    if entry := written_entry(owners, value):
        return entry, 1
    if op.name in SLICES and (finds_rows(owners, op) or _takes_entry(owners, op)):
        return op.operands[0], 1
    return None


def _takes_entry(owners: Owners, op: Operation) -> bool:
    """Whether a slice takes one entry of a stack."""
    entry = written_entry(owners, op.operands[0])
    return entry is not None and entry.type == op.results[0].type


def ones_apart(value: Value) -> list[int]:
    """The sizes of a value's dimensions, but for those of size 1."""
    return [size for size in mlir.shape(value) if size != 1]


def _sums_rows(owners: Owners, op: Operation) -> bool:
    """Whether a reduction adds up elements of different examples alone."""
    known = owners.of(op.operands[0])
    sums = len(op.results) == 1 and linearity.sums(op, 0) and vanishes(op.operands[1])
    sizes = mlir.shape(op.operands[0])
    dims = [dim for dim in integers(op, "dimensions") if sizes[dim] != 1]
    counted = isinstance(known, Owned) and all(counts_examples(known.labels, dim) for dim in dims)
    return sums and (counted or not dims)


def sum_alike(owners: Owners, one: Operation | None, other: Operation | None) -> bool:
    """Whether two reductions add up the same dimensions and keep the same, but for rows of examples
    and dimensions of size 1, as one example's alone has for rows.
    """
    if one is None or other is None or {one.name, other.name} != {REDUCE}:
        return False
    kept = [ones_apart(op.results[0]) for op in (one, other)]
    summed = [_dims_summed(owners, op) for op in (one, other)]
    ranks = [len(mlir.shape(op.operands[0])) for op in (one, other)]
    return kept[0] == kept[1] and summed[0] == summed[1] and ranks[0] == ranks[1]


def _dims_summed(owners: Owners, op: Operation) -> list[int]:
    """The dimensions that a reduction adds up, but for those that count examples."""
    known, sizes = owners.of(op.operands[0]), mlir.shape(op.operands[0])
    dims = [dim for dim in integers(op, "dimensions") if sizes[dim] != 1]
    if not isinstance(known, Owned):
        return dims
    return [dim for dim in dims if not counts_examples(known.labels, dim)]


def finds_rows(owners: Owners, op: Operation) -> bool:
    """Whether a slice leaves out examples, and nothing else."""
    known = owners.of(op.operands[0])
    cut = cut_dims(op, mlir.shape(op.results[0]))
    return isinstance(known, Owned) and all(counts_examples(known.labels, dim) for dim in cut)


def cut_dims(op: Operation, part: Sequence[int]) -> list[int]:
    """The dimensions of which a slice or gather takes a part at a time, of these sizes."""
    sizes = zip(mlir.shape(op.operands[0]), part, strict=True)
    return [dim for dim, (whole, own) in enumerate(sizes) if whole != own]


def counts_examples(labels: Labels, dim: int) -> bool:
    """Whether a dimension counts examples, and nothing else."""
    return labels.varies_along(dim) and len(labels.digits[dim]) == 1


def written_entry(owners: Owners, stack: Value) -> Value | None:
    """What each step of a loop writes into a stack of one such entry for each; None of other
    values.
    """
    loop = mlir.defining_operation(stack)
    if loop is None or loop.name != "stablehlo.while":
        return None
    number, body = mlir.results(loop).index(stack), loop.regions[1].blocks[0]
    write = mlir.defining_operation(mlir.operands(mlir.return_operation(body))[number])
    if write is None or write.name != UPDATE or cast(Any, write).block != body:
        return None
    entry, counted = write.operands[1], counted_loop(owners, loop)
    if counted is None or write.operands[0] != body.arguments[number]:
        return None
    sizes = list(zip(mlir.shape(stack), mlir.shape(entry), strict=True))
    cut = [dim for dim, (whole, part) in enumerate(sizes) if whole != part]
    if counted.trips == 1 and not cut:
        return entry
    if len(cut) != 1 or sizes[cut[0]] != (counted.trips, 1):
        return None
    return entry if _takes_turns(owners, write.operands[2 + cut[0]], counted.trips) else None


def _takes_turns(owners: Owners, index: Value, trips: int) -> bool:
    """Whether an index is each number of a loop's steps at one of them."""
    numbers = integers_of(owners, index)
    if numbers is None or numbers.size != trips:
        return False
    return np.array_equal(np.sort(numbers, None), np.arange(trips))
