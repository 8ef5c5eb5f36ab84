"""Held divisions: integer divisions out of sight of MLIR's folding, which dies of one by zero.

    %q = divide %n, %d    =>    %q = custom_call @hlo_surgery.held.divide(%n, %d)    and back

Those of constants are folded here, where they have a result.
"""

from typing import cast

import jax.numpy as jnp

from hlo_surgery.passes.dataflow.numbers import DIVIDING, evaluate
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, ir

PREFIX = "hlo_surgery.held."


def hold_divisions(module: Module) -> None:
    """Put a call in place of every integer division of static shape."""
    for op in mlir.all_operations(module):
        divides = op.name in DIVIDING and not mlir.is_inexact(op.results[0])
        if divides and cast(ir.RankedTensorType, op.results[0].type).has_static_shape:
            _hold(op)


def fold_divisions(module: Module) -> bool:
    """Fold the held divisions of constants that have a result. Whether there was one."""
    folded = [_folds(op) for op in _held(module)]
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
    mlir.rename(op, "stablehlo.custom_call", {"call_target_name": target})


def _release(op: Operation) -> Operation:
    name = mlir.text_attribute(op, "call_target_name").removeprefix(PREFIX)
    return mlir.rename(op, f"stablehlo.{name}", {})


def _folds(op: Operation) -> bool:
    division = _release(op)
    found = evaluate(division.results[0])
    if found is None:
        _hold(division)
    else:
        mlir.replace(division, splice([], lambda: [jnp.asarray(found)], division))
    return found is not None
