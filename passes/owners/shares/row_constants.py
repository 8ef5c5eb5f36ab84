"""Row constants: the constants in what examples own, and in what sums their rows.

    %m = add %l, %v            %l: rows of examples 0 and 1, %v: nobody's
    %s = reduce add %m         the rows of both hold the same constants, and so as much is theirs

Of a loop's steps each must have the same ones.
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.classes import (
    Class,
    Owned,
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.labelling.labels import counts_at
from hlo_surgery.passes.owners.labelling.spots import windows_of
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.row_sums import (
    DYNAMIC_SLICE,
    SLICES,
    counts_examples,
    cut_dims,
    finds_rows,
    written_entry,
)

GATHER = "stablehlo.gather"
Examples = frozenset[int]


def has_constant(owners: Owners, value: Value) -> bool:
    """Whether constants are added to what examples bring to a value."""
    bearers = constant_bearers(owners, value)
    return any(has_constants_in_rows(owners, v) or holds_constant(owners, v) for v in bearers)


def constant_bearers(owners: Owners, value: Value) -> set[Value]:
    """A value and what it is made of by linear ops, or of what may be constant by any, back to
    where its constants come in.
    """
    return closure([value], lambda v: _bearers(owners, v))


def _bearers(owners: Owners, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None or not _may_hold(owners, value):
        return []
    if op.name == mlir.BARRIER:
        return [behind_barriers(value)]
    if entry := written_entry(owners, value):
        return [entry]
    own = own_operands(owners, op)
    followed = linearity.is_linear(op, own) or is_stand_in(owners, value)
    return [op.operands[i] for i in own] if followed else []


def _may_hold(owners: Owners, value: Value) -> bool:
    return is_sum(owners.of(value)) or has_constants_in_rows(owners, value)


def has_constants_in_rows(owners: Owners, value: Value) -> bool:
    """Whether what examples own may hold constants."""
    known = owners.of(value)
    if not isinstance(known, Owned) or known.is_shared:
        return False
    told = known.offset or known.filled or known.data is not None
    return told or is_stand_in(owners, value)


def is_stand_in(owners: Owners, value: Value) -> bool:
    """Whether a value may be constant by a choice, and no offset tells that."""
    return value in (owners.stand_ins or {})


def own_operands(owners: Owners, op: Operation) -> frozenset[int]:
    """The operands that examples reach."""
    return frozenset(i for i, known in enumerate(owners.at(op)) if not is_shared(known))


def are_the_same_in_rows(
    owners: Owners, value: Value, steps: Sequence[int], examples: Sequence[Examples]
) -> bool:
    """Whether at each step of the loops around each of some examples has as many rows with
    constants behind a value, and the same constants in each; False also where not known.
    """
    bearers = [v for v in constant_bearers(owners, value) if _may_hold(owners, v)]
    made_alike = all(_is_made_alike(owners, v) for v in bearers)
    # What other loops stack has a row for each example if their stack has.
    rows = [v for v in bearers if has_constants_in_rows(owners, v) and _is_around(v, value)]
    return made_alike and all(_covers(owners.of(v), steps, examples) for v in rows)


def _is_around(one: Value, other: Value) -> bool:
    """Whether all loops that the one is in are around the other as well."""
    loops = ([loop.results[0] for loop in mlir.loops_around(v)] for v in (one, other))
    own, around = map(set[Value], loops)
    return own <= around


def _covers(known: Class, steps: Sequence[int], examples: Sequence[Examples]) -> bool:
    """Whether at each step these examples own elements, and all that do one row, and no constants
    lie in rows of nobody.
    """
    assert isinstance(known, Owned)
    if known.filled:
        return False
    counts = counts_at(known.labels, steps)
    pairs = zip(counts, examples, strict=True)
    return all(own.keys() >= wanted and set(own.values()) == {1} for own, wanted in pairs)


def _is_made_alike(owners: Owners, value: Value) -> bool:
    """Whether nothing that nobody owns, and that differs from example to example or from step to
    step, goes into a value; other than where it looks for their rows.
    """
    op = mlir.defining_operation(value)
    if written_entry(owners, value) or behind_barriers(value) != value:
        return True
    if op is None or op.name in mlir.CONTROL_FLOW:
        return False
    if op.name == DYNAMIC_SLICE and finds_rows(owners, op):
        return True
    if op.name in SLICES | {GATHER} and not _picks_alike(owners, op):
        return False
    beside = [v for v in op.operands if is_shared(owners.of(v))]
    loops = mlir.enclosing_loops(op)
    differs = any(varies(owners.varying, loop, v) for loop in loops for v in beside)
    return not differs and owners.beside.isdisjoint(beside)


def _picks_alike(owners: Owners, op: Operation) -> bool:
    """Whether a slice or gather takes the same places of each example, or nothing of it."""
    known = owners.of(op.operands[0])
    if not isinstance(known, Owned):
        return True
    labels, is_slice = known.labels, op.name in SLICES
    cut = [dim for dim in _cut(op) if labels.varies_along(dim)]
    return all(is_slice and counts_examples(labels, dim) for dim in cut)


def _cut(op: Operation) -> list[int]:
    """The dimensions of which a slice or gather takes a part at a time."""
    return cut_dims(op, windows_of(op).sizes if op.name == GATHER else mlir.shape(op.results[0]))
