"""Out of scope: given a module as any frontend dumps it, a refusal where it does more than compute.

    custom_call @xla_ffi_python_cpu_callback
        the host is called back, and nothing is known of what it does
    all_reduce, SPMDFullToShardShape
        the program is one device's own, and reaches the others' examples

These are refused wherever they occur, whether or not a gradient depends on them.

Static shapes: given a module as any frontend dumps it, a refusal where shapes are left open.

%y = dynamic_broadcast_in_dim %c, %n : tensor<?xf32>       its size is known at run time only

Constraints: given a module with Shardy's, each set aside as a mark of the op that it places.

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
from hlo_surgery.passes.ir.errors import Refusal, reason_at
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, sdy
from hlo_surgery.passes.ir.modules import is_annotation, meshes
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


def refuse_per_device(module: Module) -> None:
    """Raise Refusal at the first op of a program that devices run on parts of the batch."""
    for op in mlir.all_operations(module):
        if _is_per_device(op):
            name = mlir.text_attribute(op, "call_target_name") or op.name
            why = (
                f"the program is written for each device on its own ({name}), and examples lie "
                "on several"
            )
            raise Refusal(reason_at(op, why, DEVICES_HELP))


def refuse_effects(module: Module) -> None:
    """Raise Refusal at the first op that reaches outside the program. Only the process that made it
    can run it.
    """
    for op in mlir.all_operations(module):
        why = _effect(op)
        if why:
            raise Refusal(reason_at(op, why, EFFECT_HELP))


def _effect(op: Operation) -> str:
    if op.name in TRANSFERS:
        return "data is moved between the program and its host"
    if op.name != "stablehlo.custom_call" or is_annotation(op):
        return ""
    target = mlir.text_attribute(op, "call_target_name")
    if "callback" in target:
        return f"the program calls its host back (by {target})"
    return f"{target} has a side effect" if flag(op, "has_side_effect") else ""


def _is_per_device(op: Operation) -> bool:
    called = mlir.text_attribute(op, "call_target_name") in PER_DEVICE_CALLS
    return called or op.name in COLLECTIVES or op.name == MANUAL


HELP = "lower or export the function at fixed shapes"


def refuse_dynamic_shapes(ops: Sequence[Operation]) -> None:
    """Raise Refusal at the first op whose result has a size left open."""
    # A module has many ops, of a few types.
    if all(map(is_static, {result.type for op in ops for result in op.results})):
        return
    op = next(op for op in ops if not all(is_static(result.type) for result in op.results))
    why = "the shape of what this op returns is known at run time only"
    raise Refusal(reason_at(op, why, HELP))


def is_static(kind: ir.Type) -> bool:
    """Whether a type has no size left open."""
    return not isinstance(kind, ir.RankedTensorType) or kind.has_static_shape


CONSTRAINT = "sdy.sharding_constraint"
# Of an op's results by number; of the arguments of its regions, by the numbers of both.
MARK = re.compile(r"placed_(result|argument_(\d+))_(\d+)")


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
            value, shardings = _marked(op, name), cast(Any, op.attributes[name])
            del op.attributes[name]
            _constrain(value, list(shardings))


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
