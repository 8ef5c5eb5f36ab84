"""Branches: what a choice returns is one of what its branches return: it has the join of their
classes.

What decides must be nobody's; or one example's, and then what is chosen between is its own or
nobody's, so that the result rests on no other.
"""

from collections.abc import Sequence

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    Class,
    is_shared,
)
from hlo_surgery.passes.owners.loops import (
    ClassifyBlock,
    decided,
    join_classes,
    owned_decision,
)
from hlo_surgery.passes.owners.owners import Owners

TOGETHER = "the examples decide together which branch is taken"


def classify_case(owners: Owners, op: Operation, classify: ClassifyBlock) -> list[Class]:
    """The classes of a branch's results."""
    blocks = [region.blocks[0] for region in op.regions]
    for block in blocks:
        classify(owners, block)
    returned = [mlir.operands(mlir.return_operation(block)) for block in blocks]
    found: list[Class] = []
    for number, result in enumerate(op.results):
        values = [row[number] for row in returned]
        if not owners.trained.isdisjoint([op.operands[0], *values]):
            owners.trained.add(result)
        known = owners.of(values[0])
        for value in values[1:]:
            known = join_classes(owners, op, (values[0], value), known, owners.of(value))
        found.append(_chosen(owners, op, known, values))
    return found


def _chosen(owners: Owners, op: Operation, known: Class, values: Sequence[Value]) -> Class:
    predicate = owners.of(op.operands[0])
    if is_shared(predicate):
        return decided(owners, op, op.operands[0], known, values)
    return owned_decision(owners, op, predicate, known, TOGETHER)
