"""Constant ratios: how many times the constants of one value are those of another.

    %s = reduce add (add %l, %v) over 5 rows        %l, %m: rows of examples; %v: nobody's
    %t = multiply (reduce add (add %m, %v) over 2 rows), 3          %s: 5/6 of those in %t

They are made by the same linear ops, of the same of what nobody owns, but for numbers. Of what
holds no constant it makes no difference what it is.
"""

import math

from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    ELEMENTWISE,
    Owned,
    is_shared,
)
from hlo_surgery.passes.owners.labelling.step_numbers import step_numbers
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.same_values import are_same, is_same_kind
from hlo_surgery.passes.owners.shares.row_constants import (
    SLICES,
    counts_examples,
    finds_rows,
    has_constant,
    is_stand_in,
    own_operands,
)
from hlo_surgery.passes.owners.shares.weighted_terms import ROUNDING

# Where neither holds any; of a product it makes one that holds none either.
NONE_HELD = 0.0
PRODUCTS = frozenset(f"stablehlo.{name}" for name in ("multiply", "dot_general"))
DIVIDE = "stablehlo.divide"
# What makes as much of each of any number of rows, or adds them up.
SPREADS = ELEMENTWISE | frozenset(["stablehlo.broadcast_in_dim"])
SUMS = frozenset(["stablehlo.dot_general", "stablehlo.reduce"])
BY_ROWS = SPREADS | SUMS | frozenset(["stablehlo.reshape", "stablehlo.transpose"])
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
    if not _fit(owners, one, other):
        return None
    shared = is_shared(owners.of(one)) and is_shared(owners.of(other))
    if not shared and not (has_constant(owners, one) or has_constant(owners, other)):
        return NONE_HELD
    ratio = _of_numbers(owners, one, other) if shared else None
    if ratio is not None:
        return ratio
    makers = mlir.defining_operation(one), mlir.defining_operation(other)
    return 1.0 if _take_rows_of_one(owners, *makers) else _operands(owners, *makers)


def _fit(owners: Owners, one: Value, other: Value) -> bool:
    """Whether two values are alike, but for the number of examples."""
    shapes = mlir.shape(one), mlir.shape(other)
    if mlir.element_type(one) != mlir.element_type(other) or len(shapes[0]) != len(shapes[1]):
        return False
    differing = [dim for dim, (m, n) in enumerate(zip(*shapes, strict=True)) if m != n]
    return all(_are_examples(owners, v, dim) for v in (one, other) for dim in differing)


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
    if are_same(one, other, {}):
        return 1.0
    numbers = [step_numbers(owners, v) if mlir.is_inexact(v) else None for v in (one, other)]
    known = [float(n.flat[0]) for n in numbers if n is not None and n.size == 1 and n.all()]
    return known[0] / known[1] if len(known) == 2 else None


def _take_rows_of_one(owners: Owners, one: Operation | None, other: Operation | None) -> bool:
    """Whether two values are rows of one."""
    if one is None or other is None or not {one.name, other.name} <= SLICES:
        return False
    is_one = one.operands[0] == other.operands[0]
    return is_one and finds_rows(owners, one) and finds_rows(owners, other)


def _operands(owners: Owners, one: Operation | None, other: Operation | None) -> list[Pair] | None:
    """The pairs of operands of two ops of one kind, each linear in what may hold constants."""
    if one is None or other is None or not _adds_or_maps(one) or not is_same_kind(one, other):
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
    return pairs if alike or one.name in (BY_ROWS if own else SPREADS) else None


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
    return len(op.results) == 1 and (not len(op.regions) or op.name == "stablehlo.reduce")


def _of_ops(owners: Owners, one: Value, other: Value, known: dict[Pair, Ratio]) -> Ratio:
    """The ratio of what two ops of one kind make, by those of their operands."""
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
    sizes = [math.prod(mlir.shape(v)) for v in (op.operands[number], op.results[0])]
    return sizes[0] / max(sizes[1], 1)
