"""Hidden parameters: those that are no argument of floats, where a gradient has no such argument.

    jax.jit(lambda x: jax.grad(loss)(W, x))      =>  W is a constant of the module
    loss(q / 64, x), loss(normal(key), x)        =>  integers, or drawn numbers

So whatever may hold them counts as a parameter: what parameters do not reach is data, of which
more is taken as a constant.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat, is_table
from hlo_surgery.passes.ir.mlir import Block, Operation, Value

# Tables, counted and drawn numbers, of which arrays of parameters may be made.
MADE_FROM = frozenset(["stablehlo.iota", "stablehlo.rng", "stablehlo.rng_bit_generator"])


def hidden_parameters(
    block: Block, batch: Collection[int], gradients: Collection[int]
) -> set[Value]:
    """What may be parameters, or what these are made of, beside arguments of floats. Where each
    gradient has an argument of its shape, that is matrices of constants of such a shape alone. A
    gradient of zeros needs none: what is not used may have been left out.
    """
    outputs = mlir.operands(mlir.return_operation(block))
    own = [outputs[number] for number in gradients]
    asked = Counter(map(mlir.shape, own))
    used = {mlir.shape(v) for v in own if not is_splat(v, 0)}
    missing = used.intersection(asked - Counter(_shapes_of_floats(block.arguments, batch)))
    others = [v for i, v in enumerate(block.arguments) if i not in batch]
    found = set[Value](others if missing else ())
    matrices = {shape for shape in asked if len(shape) > 1}
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        alike = is_table(op) and mlir.shape(op.results[0]) in matrices
        if alike or (missing and len(op.results) and _may_hold(op, missing)):
            found.update(op.results)
    return found


def _shapes_of_floats(arguments: Sequence[Value], batch: Collection[int]) -> list[tuple[int, ...]]:
    own = (v for i, v in enumerate(arguments) if i not in batch)
    return [mlir.shape(v) for v in own if mlir.is_inexact(v)]


def _may_hold(op: Operation, missing: set[tuple[int, ...]]) -> bool:
    if op.name in MADE_FROM or is_table(op):
        return True
    # An array of one number, as parameters may begin.
    filled = op.name == "stablehlo.broadcast_in_dim" and not mlir.shape(op.operands[0])
    is_one = filled or op.name == "stablehlo.constant"
    return is_one and mlir.shape(op.results[0]) in missing
