"""Placed rows: in contributions, whose rows those of constants and sums beside examples are."""

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.owners.alignment.positions import Search, if_uneven, met_directly, searched
from hlo_surgery.passes.owners.classes import (
    Class,
    Owned,
    Summed,
    is_constant_or_sum,
)
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.owners.owners import Owners


def placed_values(owners: Owners, block: Block) -> dict[Value, Labels]:
    """Constants and sums whose rows run along with those of all examples, and whose they are."""
    everyone, found = set(range(owners.size)), dict[Value, set[Labels]]()
    for placed in searched(owners, block).placed:
        whole = everyone == set(placed.places.owners.ravel().tolist())
        if whole and not placed.in_sum and _is_placeable(owners, placed.value):
            found.setdefault(placed.value, set()).add(owners.kept(placed.places))
    # Rows that run along in two ways are of none.
    return {value: rows.pop() for value, rows in found.items() if len(rows) == 1}


def _is_placeable(owners: Owners, value: Value) -> bool:
    op = mlir.defining_operation(value)
    is_made = op is not None and op.name not in mlir.CONTROL_FLOW
    return is_made and _is_mixed_constant(owners.of(value))


def _is_mixed_constant(known: Class) -> bool:
    constant = isinstance(known, Owned) and known.is_shared and known.data is not None
    return constant or isinstance(known, Summed)


def even_rows(owners: Owners, block: Block) -> dict[Value, Labels]:
    """Constants that meet examples row by row, and are alike in each; and whose rows they are."""
    search, met = Search(owners), dict[Value, dict[object, Labels]]()
    for value, places in met_directly(search, block):
        if _is_mixed_constant(owners.of(value)):
            labels = owners.kept(places)
            met.setdefault(value, {})[labels] = labels
    once = {v: next(iter(labels.values())) for v, labels in met.items() if len(labels) == 1}
    return {v: labels for v, labels in once.items() if _is_even_for_all(search, v, labels)}


def _is_even_for_all(search: Search, value: Value, labels: Labels) -> bool:
    everyone = set(range(search.owners.size))
    if everyone != set(labels.owners.ravel().tolist()):
        return False
    return not any(True for _ in if_uneven(search, value, labels))


def evenly_summed(owners: Owners, op: Operation) -> Owned | None:
    """The rows over which an op sums a constant, alike in all examples' rows: even shares."""
    notes = owners.contributions
    if notes is None or op.name != "stablehlo.reduce" or len(op.results) != 1:
        return None
    labels, known = notes.even.get(op.operands[0]), owners.of(op.operands[0])
    if labels is None or not is_constant_or_sum(known) or not linearity.sums(op, 0):
        return None
    return Owned(labels) if any(map(labels.varies_along, integers(op, "dimensions"))) else None
