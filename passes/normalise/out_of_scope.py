"""Out of scope: given a module as any frontend dumps it, a refusal where it does more than compute.

    custom_call @xla_ffi_python_cpu_callback
        the host is called back, and nothing is known of what it does
    all_reduce, SPMDFullToShardShape
        the program is one device's own, and reaches the others' examples

These are refused wherever they occur, whether or not a gradient depends on them.
"""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.ir.mlir import Module, Operation
from hlo_surgery.passes.ir.placement import is_annotation
from hlo_surgery.passes.ir.source_lines import reason_at

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
    acts = "has_side_effect" in op.attributes and bool(
        cast(Any, op.attributes["has_side_effect"]).value
    )
    return f"{target} has a side effect" if acts else ""


def _is_per_device(op: Operation) -> bool:
    called = (
        op.name == "stablehlo.custom_call"
        and mlir.text_attribute(op, "call_target_name") in PER_DEVICE_CALLS
    )
    return called or op.name in COLLECTIVES or op.name == MANUAL
