"""Placement: given a module that says where values lie, the same values with no word of it.

    %y = custom_call @Sharding(%x) {mhlo.sharding = ...}    =>    %x
    func @main(%x {sdy.sharding = ...})                           func @main(%x)

A sharding, GSPMD's or Shardy's, a layout and a memory kind change no value, and none of them
outlives the mesh or the caller that it was written for. XLA partitions the module anew for the
arrays with which it is called.
"""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir

CALLS = frozenset(
    ["Sharding", "annotate_device_placement", "LayoutConstraint", "xla.sdy.FuncResultSharding"]
)
OPS = frozenset(["sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.reshard"])
DECLARATIONS = frozenset(["sdy.mesh", "sdy.sharding_group"])
ATTRIBUTES = frozenset(
    [
        "sdy.sharding",
        "sdy.sharding_rule",
        "mhlo.sharding",
        "mhlo.layout_mode",
        "mhlo.memory_kind",
    ]
)
DEVICE_COUNTS = ("mhlo.num_partitions", "mhlo.num_replicas")


def drop_placement(module: Module, *, but_meshes: bool = False) -> None:
    """Drop the annotations in place; the module is then one for a single device.

    But what says which meshes there are may stay, for constraints to name them.
    """
    kept = frozenset(["sdy.mesh"] if but_meshes else [])
    for op in mlir.all_operations(module):
        if is_annotation(op):
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name in DECLARATIONS - kept:
            op.erase()
        else:
            _drop_attributes(op)
    for name in () if but_meshes else DEVICE_COUNTS:
        if name in module.operation.attributes:
            del module.operation.attributes[name]


def is_annotation(op: Operation) -> bool:
    """Whether the op returns its operand, and says no more than where it lies."""
    named = (
        op.name == "stablehlo.custom_call" and mlir.text_attribute(op, "call_target_name") in CALLS
    )
    return (named or op.name in OPS) and [v.type for v in op.operands] == [
        v.type for v in op.results
    ]


def placed(value: Value) -> Value:
    """The value itself, before ops that say where it lies."""
    op = mlir.defining_operation(value)
    while op is not None and is_annotation(op):
        value = op.operands[0]
        op = mlir.defining_operation(value)
    return value


def _drop_attributes(op: Operation) -> None:
    for name in ATTRIBUTES:
        if name in op.attributes:
            del op.attributes[name]
    if op.name == "func.func":
        for ports in ("arg_attrs", "res_attrs"):
            if ports in op.attributes:
                kept = [_kept(entry) for entry in cast(Any, op.attributes[ports])]
                op.attributes[ports] = ir.ArrayAttr.get(kept, mlir.context())


def _kept(attributes: Any) -> ir.Attribute:
    """The attributes of one argument or result but for those that place it."""
    entries = ((entry.name, entry.attr) for entry in ir.DictAttr(attributes))
    with mlir.context():
        return ir.DictAttr.get({name: value for name, value in entries if name not in ATTRIBUTES})
