"""Constraints: given a module with Shardy's, each set aside as a mark of the op that it places.

    %1 = tanh %0                                         %1 = tanh %0 {placed_result_0 = [...]}
    %2 = sdy.sharding_constraint %1 <@mesh, ...>   =>
    %3 = negate %2                                       %3 = negate %1

A constraint changes no value, so no pass has to look through one. Marks stay with an op wherever it
is moved, and in what it is rebuilt as; at the end they are constraints again.
"""

import math
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, sdy
from hlo_surgery.passes.ir.placement import meshes
from hlo_surgery.passes.normalise.out_of_scope import MANUAL

CONSTRAINT = "sdy.sharding_constraint"
# Of an op's results by number; of the arguments of its regions, by the numbers of both.
MARK = re.compile(r"placed_(result|argument_(\d+))_(\d+)")


def set_aside(module: Module) -> bool:
    """Put marks in place of the constraints of a module in place; whether there were any."""
    found = [op for op in mlir.all_operations(module) if op.name == CONSTRAINT]
    for op in found:
        _mark(op.operands[0], op.attributes["sharding"])
        op.results[0].replace_all_uses_with(op.operands[0])
        op.erase()
    return bool(found)


def put_back(module: Module) -> None:
    """Put constraints in place of marks, of values whose dimensions are as they were."""
    for op in mlir.all_operations(module):
        for name in marks(op):
            value, shardings = _marked(op, name), cast(Any, op.attributes[name])
            del op.attributes[name]
            _constrain(value, list(shardings))


def device_count(module: Module) -> int | None:
    """On how many devices a module's constraints are, and what each device has to itself; None
    where it has neither.
    """
    placed = not {CONSTRAINT, MANUAL}.isdisjoint(mlir.op_names(module))
    return mesh_size(module) if placed else None


def mesh_size(module: Module) -> int:
    """Of how many devices the largest mesh is that a module names; 1 where it names none."""
    return max((math.prod(axes.values()) for _, axes, _ in meshes(module)), default=1)


def marks(op: Operation) -> list[str]:
    """The names of the attributes that are marks."""
    return [name for name in mlir.attribute_names(op) if MARK.fullmatch(name)]


def unmarked(op: Operation) -> dict[str, object]:
    """The op's attributes but for marks: what it computes. Of complex constants it is their text,
    since the bindings cannot hold them.
    """
    if op.name == "stablehlo.constant" and mlir.is_complex(op.results[0]):
        number = mlir.attribute_names(op).index("value")
        return {"value": str(cast(Any, op.attributes)[number])}
    return {k: v for k, v in mlir.attributes(op).items() if not MARK.fullmatch(k)}


def _mark(value: Value, sharding: ir.Attribute) -> None:
    """Several of one value stand one behind the other, as they did."""
    op, name = _owner(value)
    known = list(cast(Any, op.attributes[name])) if name in op.attributes else []
    op.attributes[name] = ir.ArrayAttr.get([*known, sharding], mlir.context())


def _owner(value: Value) -> tuple[Operation, str]:
    """The op that bears the marks of a value, and their name."""
    op = mlir.defining_operation(value)
    if op is not None:
        return op, f"placed_result_{mlir.results(op).index(value)}"
    block = cast(Any, value.owner)
    op = cast(Operation, block.owner.operation)
    region = next(i for i, each in enumerate(op.regions) if each.blocks[0] == block)
    return op, f"placed_argument_{region}_{cast(Any, ir.BlockArgument(value)).arg_number}"


def _marked(op: Operation, name: str) -> Value:
    """The value that a mark is of."""
    match = cast(re.Match[str], MARK.fullmatch(name))
    number = int(match[3])
    if match[1] == "result":
        return op.results[number]
    return op.regions[int(match[2])].blocks[0].arguments[number]


def _constrain(value: Value, shardings: Sequence[ir.Attribute]) -> None:
    """Nothing where nobody uses the value, or it is another than was constrained."""
    for sharding in shardings if list(value.uses) else []:
        if len(sdy.TensorShardingAttr(sharding).dimension_shardings) != len(mlir.shape(value)):
            return
        with _behind(value):
            made = sdy.ShardingConstraintOp(value, sharding)
        value.replace_all_uses_except(made.result, made.operation)
        value = made.result


@contextmanager
def _behind(value: Value) -> Generator[None]:
    """Where ops are to be put that take a value."""
    op = mlir.defining_operation(value)
    if op is not None:
        point, location = ir.InsertionPoint.after(op), op.location
    else:
        block = cast(Any, value.owner)
        point, location = ir.InsertionPoint.at_block_begin(block), block.owner.operation.location
    with mlir.context(), location, point:
        yield
