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
from hlo_surgery.passes.ir.inlining import COMPOSITE
from hlo_surgery.passes.ir.mlir import Module, Operation

SCAN = "chlo.scan"


def sum_windows(module: Module) -> None:
    """Put sums over windows in place of scans that add up one array from zero."""
    for op in mlir.all_operations(module):
        composite = op.name == COMPOSITE and mlir.text_attribute(op, "name") == SCAN
        if (composite or op.name == SCAN) and _adds_up(op):
            mlir.replace(op, splice(mlir.operands(op), partial(_summed, *_told(op)), op))


def _adds_up(op: Operation) -> bool:
    if len(op.operands) != 2 or len(op.regions) != 1 or 0 in mlir.shape(op.operands[0]):
        return False
    block = op.regions[0].blocks[0]
    added, *behind = mlir.operations(block)
    both = added.name == "stablehlo.add" and set(added.operands) == set(block.arguments)
    alone = len(behind) == 1 and mlir.operands(behind[0]) == [added.results[0]] * 2
    return both and alone and is_splat(op.operands[1], 0)


def _told(op: Operation) -> tuple[int, bool]:
    """Along which dimension, and whether from the end."""
    named = mlir.attributes(op)
    told = cast(Mapping[str, Any], named.get("composite_attributes", named))
    return told["dimension"].value, told["is_reverse"].value


def _summed(axis: int, backwards: bool, x: jax.Array, _: jax.Array) -> list[jax.Array]:
    """All sums, and the last, which is what a scan carries at the end."""
    count = x.shape[axis]
    sizes, padding = [1] * x.ndim, [(0, 0)] * x.ndim
    sizes[axis], padding[axis] = count, (0, count - 1) if backwards else (count - 1, 0)
    start = x.dtype.type(0)
    sums = lax.reduce_window(x, start, lax.add, sizes, [1] * x.ndim, padding)
    last = lax.index_in_dim(sums, 0 if backwards else count - 1, axis, keepdims=False)
    return [sums, last]
