"""Held: values that reach what is returned only through marks of constants, so that they are data.

%m = reduce add %s ; %d = subtract %s, %m ; %c = optimization_barrier %d {held_constant}
    =>   %m, %d and %c are held; %s is not where it is used elsewhere too
"""

from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery.passes.dataflow.ancestors import ancestors, behind
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.normalise.held_constants import holds_constant


def held_values(block: Block) -> set[Value]:
    """The results of marks, and what these are made of and what is returned is not, unless through
    marks.
    """
    ops = mlir.nested_operations(cast(Any, block.owner).operation)
    marked = [result for op in ops if holds_constant(op) for result in op.results]
    returned = mlir.operands(mlir.return_operation(block)) if marked else []
    return ancestors(marked) - past_marks(returned)


def past_marks(values: Sequence[Value]) -> set[Value]:
    """The values and all that they are made of otherwise than through a mark of a constant."""
    found = closure(values, lambda value: [] if _is_mark(value) else behind(value))
    return {value for value in found if not _is_mark(value)}


def _is_mark(value: Value) -> bool:
    op = mlir.defining_operation(value)
    return op is not None and holds_constant(op)
