"""Branches: what a choice returns is one of what its branches return: it has the join of their
classes.

What decides must be nobody's; or one example's, and then what is chosen between is its own or
nobody's, so that the result rests on no other.
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    Class,
    Owned,
    is_shared,
)
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.owners.loops import (
    ClassifyBlock,
    decided,
    join_classes,
    owned_decision,
)
from hlo_surgery.passes.owners.offsets import noted_as_uneven
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
        found.append(_chosen(owners, op, result, known, values))
    return found


def _chosen(
    owners: Owners, op: Operation, result: Value, known: Class, values: Sequence[Value]
) -> Class:
    predicate = owners.of(op.operands[0])
    owners.uneven.discard(result)
    if is_shared(predicate):
        by_step = isinstance(known, Owned) and _gives_by_step(owners, op, known.labels, values)
        mixed = noted_as_uneven(owners, op, [result]) if by_step else None
        return mixed or decided(owners, op, op.operands[0], known, values)
    return owned_decision(owners, op, predicate, known, TOGETHER)


def _gives_by_step(owners: Owners, op: Operation, labels: Labels, values: Sequence[Value]) -> bool:
    """Whether what nobody owns decides step by step of a loop that takes examples so, as the
    number of the step does, and constants are among what is chosen between: they would be those
    examples' whose step has them.
    """
    if not any(_has_constants(owners, value) for value in values):
        return False
    loops = reversed(mlir.enclosing_loops(op))
    sizes = labels.owners.shape[: labels.steps]
    return any(
        size > 1 and varies(owners.varying, loop, op.operands[0])
        for size, loop in zip(sizes, loops, strict=False)
    )


def _has_constants(owners: Owners, value: Value) -> bool:
    known = owners.of(value)
    if isinstance(known, Owned) and not known.is_shared:
        return known.offset or known.filled
    return mlir.is_inexact(value) and is_shared(known) and not is_splat(value, 0)
