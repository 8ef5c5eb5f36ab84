"""Row constants: the constants in what examples own, and in what sums their rows.

    %s = reduce add (add %l, %v) over rows      %l: rows of examples 0 and 1; %v: nobody's
    %t = reduce add (add %m, %v) over rows      %m: rows of examples 2 and 3

Both hold the same: they are made by the same linear ops, of the same of what nobody owns. Of what
holds no constant it makes no difference what it is.
"""

from collections.abc import Sequence

import numpy as np

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.all_hold import all_hold
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.classes import Class, Owned, Owners, Summed, is_shared
from hlo_surgery.passes.owners.labelling.moves import BOUNDS
from hlo_surgery.passes.owners.same_values import are_same, is_same_kind

SLICE = "stablehlo.slice"
Pair = tuple[Value, Value]
Examples = frozenset[int]


def hold_the_same(owners: Owners, one: Value, other: Value) -> bool:
    """Whether the constants in two values are made alike, of what nobody owns."""

    def rests_on(pair: Pair) -> list[Pair] | None:
        return _made_of(owners, *pair)

    return one.type == other.type and all_hold((one, other), rests_on, {})


def _made_of(owners: Owners, one: Value, other: Value) -> list[Pair] | None:
    """The pairs of which the constants must be the same for those of this one to be."""
    shared = [is_shared(owners.of(v)) for v in (one, other)]
    if all(shared):
        return [] if are_same(one, other, {}) else None
    if any(shared):
        return None
    if not (has_constant(owners, one) or has_constant(owners, other)):
        return []
    makers = mlir.defining_operation(one), mlir.defining_operation(other)
    return [] if _take_rows_of_one(owners, *makers) else _of_ops(owners, *makers)


def _take_rows_of_one(owners: Owners, one: Operation | None, other: Operation | None) -> bool:
    """Whether two values are rows of one, of which all examples' hold the same constants."""
    if one is None or other is None or {one.name, other.name} != {SLICE}:
        return False
    source = one.operands[0]
    known = owners.of(source)
    if source != other.operands[0] or not isinstance(known, Owned):
        return False
    bounds = [zip(*(integers(op, name) for name in BOUNDS), strict=True) for op in (one, other)]
    moved = [dim for dim, (a, b) in enumerate(zip(*bounds, strict=True)) if a != b]
    everyone = frozenset(range(owners.size))
    rows = all(known.labels.varies_along(d) and len(known.labels.digits[d]) == 1 for d in moved)
    return rows and are_the_same_in_rows(owners, source, everyone)


def has_constant(owners: Owners, value: Value) -> bool:
    """Whether constants are added to what examples bring to a value."""
    bearers = constant_bearers(owners, value)
    return any(_has_offset(owners.of(v)) or holds_constant(owners, v) for v in bearers)


def constant_bearers(owners: Owners, value: Value) -> set[Value]:
    """A value and what it is made of by linear ops, back to where its constants come in."""
    return closure([value], lambda v: _bearers(owners, v))


def _bearers(owners: Owners, value: Value) -> list[Value]:
    op, known = mlir.defining_operation(value), owners.of(value)
    may_hold = isinstance(known, Summed) or _has_offset(known)
    if op is None or not may_hold or op.name in mlir.CONTROL_FLOW:
        return []
    classes = owners.at(op)
    own = _not_shared(classes)
    if not linearity.is_linear(op, own):
        return []
    return [op.operands[i] for i in own if isinstance(classes[i], Summed | Owned)]


def _has_offset(known: Class) -> bool:
    return isinstance(known, Owned) and (known.offset or known.data is not None)


def _not_shared(classes: Sequence[Class]) -> frozenset[int]:
    return frozenset(i for i, known in enumerate(classes) if not is_shared(known))


def _of_ops(owners: Owners, one: Operation | None, other: Operation | None) -> list[Pair] | None:
    if one is None or other is None or not _adds_or_maps(one) or not is_same_kind(one, other):
        return None
    own = [_not_shared(owners.at(op)) for op in (one, other)]
    if own[0] != own[1] or not linearity.is_linear(one, own[0]):
        return None
    return list(zip(one.operands, other.operands, strict=True))


def _adds_or_maps(op: Operation) -> bool:
    """Whether an op's linearity says all that its regions do, if it has any."""
    return not len(op.regions) or op.name == "stablehlo.reduce"


def are_the_same_in_rows(owners: Owners, value: Value, examples: Examples) -> bool:
    """Whether each of some examples has as many rows with constants behind a value, and the same
    constants in each; False also where not known.
    """
    bearers = constant_bearers(owners, value)
    rows = [owners.of(v) for v in bearers]
    made_by = [op for v in bearers if (op := mlir.defining_operation(v))]
    beside = (v for op in made_by for v in op.operands)
    return (
        all(_covers(known, examples) for known in rows if _has_offset(known))
        and not any(op.name in mlir.CONTROL_FLOW for op in made_by)
        and owners.beside.isdisjoint(beside)
    )


def _covers(known: Class, examples: Examples) -> bool:
    """Whether all that own elements own as many, and these examples are among them."""
    assert isinstance(known, Owned)
    numbers = known.labels.owners
    counts = np.unique(numbers[numbers >= 0], return_counts=True)[1]
    return examples <= known.labels.examples and len(set(counts.tolist())) == 1
