"""Prefix sums: `jnp.cumsum` as JAX lowers it for GPUs since 0.11, as it does for all others.

    chlo.scan %x, 0 { add } {dimension = d}   =>   reduce_window add %x over all before

So too for the composite that an export has in place of that op. What it stands for otherwise is a
loop of one position a step; of a sum over windows XLA makes a tree, and the analysis sees that each
example's sums are its own.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
from jax import lax

from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Module, Operation, ir

SCAN, COMPOSITE = "chlo.scan", "stablehlo.composite"


def sum_windows(module: Module) -> None:
    """Put sums over windows in place of scans that add up one array from zero."""
    for op in mlir.all_operations(module):
        if _is_scan(op) and _adds_up(op):
            made = splice(mlir.operands(op), partial(_summed, *_told(op)), op)
            for result, value in zip(mlir.results(op), made, strict=True):
                result.replace_all_uses_with(value)
            op.erase()


def _is_scan(op: Operation) -> bool:
    composite = op.name == COMPOSITE and mlir.text_attribute(op, "name") == SCAN
    one = len(op.operands) == 2 and len(op.regions) == 1 and 0 not in mlir.shape(op.operands[0])
    return (composite or op.name == SCAN) and one


def _adds_up(op: Operation) -> bool:
    block = op.regions[0].blocks[0]
    added, *behind = mlir.operations(block)
    both = added.name == "stablehlo.add" and set(added.operands) == set(block.arguments)
    alone = len(behind) == 1 and mlir.operands(behind[0]) == [added.results[0]] * 2
    return both and alone and is_splat(op.operands[1], 0)


def _told(op: Operation) -> tuple[int, bool]:
    """Along which dimension, and whether from the end."""
    named = mlir.attributes(op)
    told = cast(Mapping[str, Any], named.get("composite_attributes", named))
    axis, backwards = ir.IntegerAttr(told["dimension"]), ir.BoolAttr(told["is_reverse"])
    return int(axis.value), bool(backwards.value)


def _summed(axis: int, backwards: bool, x: jax.Array, zero: jax.Array) -> list[jax.Array]:
    """All sums, and the last, which is what a scan carries at the end."""
    count = x.shape[axis]
    sizes, padding = [1] * x.ndim, [(0, 0)] * x.ndim
    sizes[axis], padding[axis] = count, (0, count - 1) if backwards else (count - 1, 0)
    start = x.dtype.type(0)
    sums = lax.reduce_window(x, start, lax.add, sizes, [1] * x.ndim, padding)
    last = lax.index_in_dim(sums, 0 if backwards else count - 1, axis, keepdims=False)
    return [sums, last]
