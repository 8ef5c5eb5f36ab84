"""Held divisions: integer divisions out of sight of MLIR's folding, which dies of one by zero.

    %q = divide %n, %d    =>    %q = custom_call @hlo_surgery.held.divide(%n, %d)    and back

Those of constants are folded here, where they have a result.
"""

from typing import Any, cast

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import evaluate
from hlo_surgery.passes.ir.integer_division import is_integer_division
from hlo_surgery.passes.ir.mlir import Module, Operation, ir, stablehlo

PREFIX = "hlo_surgery.held."


def hold_divisions(module: Module) -> None:
    """Put a call in place of every integer division of static shape."""
    for op in mlir.all_operations(module):
        if (
            is_integer_division(op)
            and cast(ir.RankedTensorType, op.results[0].type).has_static_shape
        ):
            _hold(op)


def fold_divisions(module: Module) -> bool:
    """Fold the held divisions of constants that have a result. Whether there was one."""
    folded = [_fold(op) for op in _held(module)]
    return any(folded)


def release_divisions(module: Module) -> None:
    """Put the divisions back."""
    for op in _held(module):
        _release(op)


def _held(module: Module) -> list[Operation]:
    ops = mlir.all_operations(module)
    return [op for op in ops if mlir.text_attribute(op, "call_target_name").startswith(PREFIX)]


def _hold(op: Operation) -> None:
    target = ir.StringAttr.get(PREFIX + op.name.removeprefix("stablehlo."), mlir.context())
    _replaced(op, "stablehlo.custom_call", {"call_target_name": target})


def _release(op: Operation) -> Operation:
    name = mlir.text_attribute(op, "call_target_name").removeprefix(PREFIX)
    return _replaced(op, f"stablehlo.{name}", {})


def _fold(op: Operation) -> bool:
    operands = [evaluate(v) for v in op.operands]
    if any(x is None for x in operands):
        return False
    division = _release(op)
    found = evaluate(division.results[0])
    if found is None:
        _hold(division)
        return False
    with mlir.context(), division.location, ir.InsertionPoint(division):
        constant = stablehlo.constant(
            cast(Any, ir.DenseElementsAttr).get(np.ascontiguousarray(found))
        )
    division.results[0].replace_all_uses_with(cast(Any, constant))
    division.erase()
    return True


def _replaced(op: Operation, name: str, attributes: dict[str, ir.Attribute]) -> Operation:
    """An op of another name with the same operands and result, in its place."""
    with mlir.context(), op.location, ir.InsertionPoint(op):
        made = ir.Operation.create(name, [op.results[0].type], list(op.operands), attributes)
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
    return made
