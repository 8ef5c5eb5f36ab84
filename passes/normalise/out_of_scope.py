"""Out of scope: given a module as any frontend dumps it, a refusal where it does more than compute.

    custom_call @xla_ffi_python_cpu_callback
        the host is called back, and nothing is known of what it does
    all_reduce, SPMDFullToShardShape
        the program is one device's own, and reaches the others' examples

These are refused wherever they occur, whether or not a gradient depends on them.

Static shapes: given a module as any frontend dumps it, a refusal where shapes are left open.

%y = dynamic_broadcast_in_dim %c, %n : tensor<?xf32>       its size is known at run time only

Constraints: given a module with Shardy's, each set aside as a mark of the op that it places.

    %1 = tanh %0                                         %1 = tanh %0 {placed_0_0 = [...]}
    %2 = sdy.sharding_constraint %1 <@mesh, ...>   =>
    %3 = negate %2                                       %3 = negate %1

A constraint changes no value, so no pass has to look through one. Marks stay with an op wherever it
is moved, and in what it is rebuilt as; at the end they are constraints again.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Refusal, reason_at
from hlo_surgery.passes.ir.mlir import Module, Operation, Operations, Value, Values, ir, sdy
from hlo_surgery.passes.ir.modules import MARK, is_annotation, marks, meshes
from hlo_surgery.passes.ir.traits import flag

MANUAL = "sdy.manual_computation"
TRANSFERS = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_reduce",
        "all_gather",
        "all_to_all",
        "reduce_scatter",
        "collective_permute",
        "collective_broadcast",
        "cross-replica-sum",
        "partition_id",
        "replica_id",
    )
)
PER_DEVICE_CALLS = frozenset(
    [
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    ]
)

EFFECT_HELP = (
    "hs.grad and hs.rewrite keep callbacks whose results nothing uses, such as jax.debug.print; "
    "take others (jax.pure_callback, io_callback), and in a dumped module all, out of the "
    "function; what the host computes from the examples alone can be an argument"
)
DEVICES_HELP = (
    "leave the partitioning to jit (in_shardings, with_sharding_constraint) instead of shard_map "
    "or pmap; "
    "or call hs.grad inside the mapped function, and average over the devices what it returns"
)

HELP = "lower or export the function at fixed shapes"


def refuse_per_device(module: Module) -> None:
    """Raise Refusal at the first op of a program that devices run on parts of the batch."""
    _refuse(mlir.all_operations(module), _on_each_device, DEVICES_HELP)


def refuse_effects(module: Module) -> None:
    """Raise Refusal at the first op that reaches outside the program. Only the process that made it
    can run it.
    """
    _refuse(mlir.all_operations(module), _effect, EFFECT_HELP)


def refuse_dynamic_shapes(ops: Operations) -> None:
    """Raise Refusal at the first op whose result has a size left open."""
    _refuse(ops, _open_shape, HELP)


def _refuse(ops: Operations, reason: Callable[[Operation], str], help: str) -> None:
    for op in ops:
        if why := reason(op):
            raise Refusal(reason_at(op, why, help))


def refusal(op: Operation, why: str) -> Refusal:
    """What is said where a program for each device cannot be made one for all."""
    said = f"the program is written for each device on its own ({op.name}), and {why}"
    return Refusal(reason_at(op, said, DEVICES_HELP))


def _on_each_device(op: Operation) -> str:
    target = mlir.text_attribute(op, "call_target_name")
    if target not in PER_DEVICE_CALLS and op.name not in COLLECTIVES and op.name != MANUAL:
        return ""
    return (
        f"the program is written for each device on its own ({target or op.name}), and examples "
        "lie on several"
    )


def _effect(op: Operation) -> str:
    if op.name in TRANSFERS:
        return "data is moved between the program and its host"
    if op.name != "stablehlo.custom_call" or is_annotation(op):
        return ""
    target = mlir.text_attribute(op, "call_target_name")
    if "callback" in target:
        return f"the program calls its host back (by {target})"
    return f"{target} has a side effect" if flag(op, "has_side_effect") else ""


def _open_shape(op: Operation) -> str:
    if all(is_static(result.type) for result in op.results):
        return ""
    return "the shape of what this op returns is known at run time only"


def is_static(kind: ir.Type) -> bool:
    """Whether a type has no size left open."""
    return not isinstance(kind, ir.RankedTensorType) or kind.has_static_shape


CONSTRAINT = "sdy.sharding_constraint"


def set_aside(module: Module) -> bool:
    """Put marks in place of the constraints of a module in place; whether there were any."""
    found = [op for op in mlir.all_operations(module) if op.name == CONSTRAINT]
    for op in found:
        _mark(op.operands[0], op.attributes["sharding"])
        mlir.replace(op, mlir.operands(op))
    return bool(found)


def put_back(module: Module) -> None:
    """Put constraints in place of marks, of values whose dimensions are as they were."""
    for op in mlir.all_operations(module):
        for name in marks(op):
            kind, number = map(int, cast(re.Match[str], MARK.fullmatch(name)).groups())
            shardings = mlir.entries(op, name)
            del op.attributes[name]
            _constrain(_bearers(op)[kind][number], shardings)


def mesh_size(module: Module) -> int:
    """Of how many devices the largest mesh is that a module names; 1 where it names none."""
    return max((math.prod(axes.values()) for _, axes, _ in meshes(module)), default=1)


def _mark(value: Value, sharding: ir.Attribute) -> None:
    """Several of one value stand one behind the other, as they did."""
    op = mlir.defining_operation(value) or cast(Any, value.owner).owner.operation
    places = ((k, n) for k, own in enumerate(_bearers(op)) for n, v in enumerate(own) if v == value)
    name = "placed_{}_{}".format(*next(places))
    op.attributes[name] = ir.ArrayAttr.get([*mlir.entries(op, name), sharding], mlir.context())


def _bearers(op: Operation) -> list[Values]:
    """The values of which an op bears the marks: its results, and the arguments of its regions."""
    return [op.results, *(block.arguments for block in mlir.blocks(op))]


def _constrain(value: Value, shardings: Sequence[ir.Attribute]) -> None:
    """Nothing where nobody uses the value, or it is another than was constrained."""
    op = mlir.defining_operation(value)
    if op is not None:
        point, location = ir.InsertionPoint.after(op), op.location
    else:
        block = cast(Any, value.owner)
        point, location = ir.InsertionPoint.at_block_begin(block), block.owner.operation.location
    for sharding in shardings if list(value.uses) else []:
        if len(sdy.TensorShardingAttr(sharding).dimension_shardings) != len(mlir.shape(value)):
            return
        with mlir.context(), location, point:
            made = sdy.ShardingConstraintOp(value, sharding)
        value.replace_all_uses_except(made.result, made.operation)
        value = made.result
