"""Held: values that reach what is returned only through marks of constants, so that they are data.

%m = reduce add %s ; %d = subtract %s, %m ; %c = optimization_barrier %d {held_constant}
    =>   %m, %d and %c are held; %s is not where it is used elsewhere too
"""

from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery.passes.dataflow.ancestors import behind
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.normalise.held_constants import holds_constant


def held_values(block: Block) -> set[Value]:
    """The results of marks, and of ops whose results are used, and by nothing but held ops and such
    as reach nothing at all.
    """
    found: set[Value] = set()
    if any(map(holds_constant, mlir.nested_operations(cast(Any, block.owner).operation))):
        _add_held(block, found, set())
    return found


def past_marks(values: Sequence[Value]) -> set[Value]:
    """The values and all that they are made of otherwise than through a mark of a constant."""
    found = closure(values, lambda value: [] if _is_mark(value) else behind(value))
    return {value for value in found if not _is_mark(value)}


def _is_mark(value: Value) -> bool:
    op = mlir.defining_operation(value)
    return op is not None and holds_constant(op)


def _add_held(block: Block, found: set[Value], unused: set[Value]) -> None:
    """From the back, so that what uses a value is known before."""
    for op in reversed(mlir.operations(block)):
        if not len(op.results):
            continue
        users = [user for result in op.results for user in mlir.users(result)]
        reaching = [user for user in users if not _is_unused(user, unused)]
        # Ops that nothing uses are not held: they may show what belongs to which example.
        if not reaching and not holds_constant(op):
            unused.update(op.results)
        elif holds_constant(op) or all(_is_held(user, found) for user in reaching):
            found.update(op.results)
        for region in op.regions:
            _add_held(region.blocks[0], found, unused)


def _is_unused(op: Operation, unused: set[Value]) -> bool:
    return len(op.results) > 0 and unused.issuperset(op.results)


def _is_held(op: Operation, found: set[Value]) -> bool:
    """Whether an op is a mark, or of a held loop or branch what returns from its region."""
    if holds_constant(op):
        return True
    results = op.results if len(op.results) else cast(Any, op.parent).results
    return len(results) > 0 and found.issuperset(results)
