"""Constant ratios: how many times the constants of one value are those of another.

    %s = reduce add (add %l, %v) over 5 rows        %l, %m: rows of examples; %v: nobody's
    %t = multiply (reduce add (add %m, %v) over 2 rows), 3          %s: 5/6 of those in %t

They are made by the same linear ops, of the same of what nobody owns, but for numbers. Of what
holds no constant it makes no difference what it is.
"""

import math

from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import dot_numbers, integers
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    ELEMENTWISE,
    Class,
    Owned,
    has_owners,
    is_shared,
)
from hlo_surgery.passes.owners.labelling.moves import BOUNDS
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.same_values import are_same, is_same_kind
from hlo_surgery.passes.owners.shares.row_constants import (
    has_constant,
    is_stand_in,
    own_operands,
)
from hlo_surgery.passes.owners.shares.row_sums import (
    REDUCE,
    behind_sums,
    counts_examples,
    rows_summed,
    sum_alike,
)
from hlo_surgery.passes.owners.shares.step_numbers import step_numbers
from hlo_surgery.passes.owners.shares.weighted_terms import ROUNDING

# Where neither holds any; of a product it makes one that holds none either.
NONE_HELD = 0.0
DOT = "stablehlo.dot_general"
PRODUCTS = frozenset(["stablehlo.multiply", DOT])
DIVIDE = "stablehlo.divide"
# What makes as much of each of any number of rows, or adds them up.
BROADCAST = "stablehlo.broadcast_in_dim"
SPREADS = ELEMENTWISE | frozenset([BROADCAST])
SUMS = frozenset([DOT, REDUCE])
SLICE = "stablehlo.slice"
RESHAPE = "stablehlo.reshape"
MOVED = frozenset([RESHAPE, SLICE, "stablehlo.pad", "stablehlo.transpose"])
BY_ROWS = SPREADS | SUMS | MOVED
Pair = tuple[Value, Value]
Ratio = float | None


def constant_ratio(owners: Owners, one: Value, other: Value) -> Ratio:
    """What the constants in a value are, divided by those in another of its type; None where that
    is not known.
    """
    known: dict[Pair, Ratio] = {}
    pending = [(one, other)] if one.type == other.type else []
    while pending:
        pair = pending[-1]
        found = _of_pair(owners, *pair)
        pairs = found if isinstance(found, list) else []
        missing = [p for p in pairs if p not in known]
        pending += missing
        if not missing:
            ratio = None if isinstance(found, list) else found
            known[pending.pop()] = _of_ops(owners, *pair, known) if pairs else ratio
    return known.get((one, other))


def _of_pair(owners: Owners, one: Value, other: Value) -> Ratio | list[Pair]:
    """The ratio, or the pairs on whose ratios it rests."""
    *rows, _ = behind_sums(owners, one, other)
    if rows != [one, other]:
        return [(rows[0], rows[1])]
    shared = is_shared(owners.of(one)) and is_shared(owners.of(other))
    if shared and (ratio := _of_numbers(owners, one, other)) is not None:
        return ratio
    if not shared and not (has_constant(owners, one) or has_constant(owners, other)):
        return NONE_HELD
    op, twin = mlir.defining_operation(one), mlir.defining_operation(other)
    if not (_fit(owners, one, other) or sum_alike(owners, op, twin)):
        return None
    if one == other:
        return 1.0
    return _operands(owners, op, twin)


def _fit(owners: Owners, one: Value, other: Value) -> bool:
    """Whether two values are alike, but for the number of examples."""
    if mlir.element_type(one) != mlir.element_type(other):
        return False
    known = owners.of(one), owners.of(other)
    if all(map(has_owners, known)):
        return _without_examples(known[0]) == _without_examples(known[1])
    shapes = mlir.shape(one), mlir.shape(other)
    if len(shapes[0]) != len(shapes[1]):
        return False
    differing = [dim for dim, (m, n) in enumerate(zip(*shapes, strict=True)) if m != n]
    return all(_are_examples(owners, v, dim) for v in (one, other) for dim in differing)


def _without_examples(known: Class) -> list[int]:
    """The sizes of dimensions that do not count examples."""
    assert isinstance(known, Owned)
    sizes = enumerate(known.labels.shape)
    return [n for dim, n in sizes if n != 1 and not counts_examples(known.labels, dim)]


def _are_examples(owners: Owners, value: Value, dim: int) -> bool:
    """Whether a dimension counts examples, or is nobody's, as what is beside them is."""
    known = owners.of(value)
    if not isinstance(known, Owned):
        return False
    is_one = mlir.shape(value)[dim] == 1
    return known.is_shared or is_one or counts_examples(known.labels, dim)


def _of_numbers(owners: Owners, one: Value, other: Value) -> Ratio:
    """The ratio of what nobody owns, where it is the same, or numbers."""
    if mlir.is_inexact(one) and vanishes(one) and vanishes(other):
        return NONE_HELD
    if are_same(one, other, {}, behind_barriers) or _are_spread_alike(one, other):
        return 1.0
    numbers = [step_numbers(owners, v) if mlir.is_inexact(v) else None for v in (one, other)]
    known = [float(n.flat[0]) for n in numbers if n is not None and n.size == 1 and n.all()]
    return known[0] / known[1] if len(known) == 2 else None


def _are_spread_alike(one: Value, other: Value) -> bool:
    """Whether two values hold the same along the same dimensions, and repeat it along the rest."""
    (first, dims), (second, others) = _spread(one), _spread(other)
    return dims == others and are_same(first, second, {}, behind_barriers)


def _spread(value: Value) -> tuple[Value, dict[int, int]]:
    """What a value repeats, and the dimensions that its own have become."""
    dims = {dim: dim for dim in range(len(mlir.shape(value)))}
    value = behind_barriers(value)
    op = mlir.defining_operation(value)
    while op is not None and op.name == BROADCAST:
        value = behind_barriers(op.operands[0])
        into = enumerate(integers(op, "broadcast_dimensions"))
        sizes = mlir.shape(value)
        dims = {dim: dims[new] for dim, new in into if sizes[dim] != 1}
        op = mlir.defining_operation(value)
    return value, dims


def _operands(owners: Owners, one: Operation | None, other: Operation | None) -> list[Pair] | None:
    """The pairs of operands of two ops of one kind, each linear in what may hold constants."""
    if one is None or other is None or not _adds_or_maps(one):
        return None
    if not _are_of_a_kind(owners, one, other):
        return None
    if one.name == BROADCAST and not _repeat_alike(one, other):
        return None
    if any(_takes_sums_as_constants(owners, op) for op in (one, other)):
        return None
    own = own_operands(owners, one)
    is_product = not own and one.name in (*PRODUCTS, DIVIDE)
    if own != own_operands(owners, other):
        return None
    is_linear = all(linearity.is_linear(op, own or _all(op)) for op in (one, other))
    if not (is_product or is_linear or all(_are_alike_or_none(owners, op) for op in (one, other))):
        return None
    pairs = list(zip(one.operands, other.operands, strict=True))
    alike = all(v.type == w.type for v, w in (*pairs, (one.results[0], other.results[0])))
    of_any_rows = BY_ROWS if own else SPREADS | MOVED - {RESHAPE}
    return pairs if alike or one.name in of_any_rows or _is_outer(one) else None


def _are_of_a_kind(owners: Owners, one: Operation, other: Operation) -> bool:
    """Whether two ops do the same, to any number of examples."""
    alike = _cut_alike(owners, one, other) or sum_alike(owners, one, other)
    return alike or is_same_kind(one, other)


def _cut_alike(owners: Owners, one: Operation, other: Operation) -> bool:
    """Whether two slices take the same places, of all examples."""
    if {one.name, other.name} != {SLICE}:
        return False
    return _places_cut(owners, one) == _places_cut(owners, other)


def _places_cut(owners: Owners, op: Operation) -> list[tuple[int, ...]]:
    """From where to where a slice takes a dimension, for those that do not count examples."""
    known = owners.of(op.operands[0])
    whole = [(0, size, 1) for size in mlir.shape(op.operands[0])]
    bounds = list(zip(*(integers(op, name) for name in BOUNDS), strict=True))
    return [
        own
        for dim, own in enumerate(bounds)
        if own != whole[dim]
        or not (isinstance(known, Owned) and counts_examples(known.labels, dim))
    ]


def _repeat_alike(one: Operation, other: Operation) -> bool:
    """Whether two broadcasts to the same dimensions repeat along the same of them."""
    into = integers(one, "broadcast_dimensions")
    shapes = [[mlir.shape(v) for v in (op.operands[0], op.results[0])] for op in (one, other)]
    return all(
        (shapes[0][0][dim] == 1) == (shapes[1][0][dim] == 1)
        for dim, new in enumerate(into)
        if shapes[0][1][new] != 1 and shapes[1][1][new] != 1
    )


def _is_outer(op: Operation) -> bool:
    """Whether an op multiplies each element of the one operand by each of the other."""
    return op.name == DOT and not list(dot_numbers(op).lhs_contracting_dimensions)


def _are_alike_or_none(owners: Owners, op: Operation) -> bool:
    """Whether an op makes the same constants of the same, in what may be constant by a choice."""
    return is_stand_in(owners, op.results[0]) and not linearity.is_linear(op, _bearing(owners, op))


def _takes_sums_as_constants(owners: Owners, op: Operation) -> bool:
    """Whether an op takes data of the batch, which may be another group's, as nobody's."""
    pairs = zip(owners.at(op), op.operands, strict=True)
    return any(is_shared(known) and not is_shared(owners.of(v)) for known, v in pairs)


def _all(op: Operation) -> frozenset[int]:
    return frozenset(range(len(op.operands)))


def _bearing(owners: Owners, op: Operation) -> frozenset[int]:
    """The operands that examples reach; where they reach none, all."""
    return own_operands(owners, op) or _all(op)


def _adds_or_maps(op: Operation) -> bool:
    """Whether an op's linearity says all that its regions do, if it has any."""
    return len(op.results) == 1 and (not len(op.regions) or op.name == REDUCE)


def _of_ops(owners: Owners, one: Value, other: Value, known: dict[Pair, Ratio]) -> Ratio:
    """The ratio of what two ops of one kind make, by those of their operands."""
    first, second, times = behind_sums(owners, one, other)
    if (first, second) != (one, other):
        ratio = known[first, second]
        return None if ratio is None else ratio * times
    op, twin = mlir.defining_operation(one), mlir.defining_operation(other)
    assert op is not None
    assert twin is not None
    found = [known[pair] for pair in zip(op.operands, twin.operands, strict=True)]
    ratios = [ratio for ratio in found if ratio is not None]
    if len(ratios) < len(found):
        return None
    if _are_alike_or_none(owners, op):
        own = own_operands(owners, op)
        alike = all(r == 1.0 or (i in own and r == NONE_HELD) for i, r in enumerate(ratios))
        return _rows(owners, op) / _rows(owners, twin) if alike else None
    if op.name in PRODUCTS:
        return math.prod(ratios) * _rows(owners, op) / _rows(owners, twin)
    if op.name == DIVIDE:
        return ratios[0] / ratios[1] if ratios[1] else None
    return _of_sum(owners, op, ratios, _rows(owners, op) / _rows(owners, twin))


def _of_sum(owners: Owners, op: Operation, ratios: list[float], rows: float) -> Ratio:
    """The ratio of a sum of terms, which must all have one; all else must be the same."""
    own = _bearing(owners, op)
    added = [i for i in _all(op) if linearity.is_linear(op, own | {i})]
    numbers = [ratios[i] for i in added if ratios[i] != NONE_HELD]
    same = all(ratios[i] == 1.0 for i in _all(op) - frozenset(added))
    if not same or not all(math.isclose(n, numbers[0], rel_tol=ROUNDING) for n in numbers):
        return None
    return numbers[0] * rows if numbers else NONE_HELD


def _rows(owners: Owners, op: Operation) -> float:
    """How many elements of what holds constants are added up in one."""
    if op.name not in SUMS:
        return 1.0
    (number, *_) = sorted(_bearing(owners, op))
    return rows_summed(owners, op, number)
