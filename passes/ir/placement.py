"""Placement: given a module that says where values lie, the same values with no word of it.

    %y = custom_call @Sharding(%x) {mhlo.sharding = ...}    =>    %x
    func @main(%x {sdy.sharding = ...})                           func @main(%x)

A sharding, GSPMD's or Shardy's, a layout and a memory kind change no value, and none of them
outlives the mesh or the caller that it was written for. XLA partitions the module anew for the
arrays with which it is called.
"""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, sdy

CALLS = frozenset(
    ["Sharding", "annotate_device_placement", "LayoutConstraint", "xla.sdy.FuncResultSharding"]
)
OPS = frozenset(["sdy.sharding_constraint", "sdy.propagation_barrier", "sdy.reshard"])
MESH, CUSTOM_CALL = "sdy.mesh", "stablehlo.custom_call"
DECLARATIONS = frozenset([MESH, "sdy.sharding_group"])
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
    for op in mlir.all_operations(module):
        name = op.name
        if (name in OPS or name == CUSTOM_CALL) and is_annotation(op):
            mlir.replace(op, mlir.operands(op))
        elif name in DECLARATIONS and not (but_meshes and name == MESH):
            op.erase()
        else:
            _drop_attributes(op, name)
    for name in () if but_meshes else DEVICE_COUNTS:
        if name in module.operation.attributes:
            del module.operation.attributes[name]


def meshes(module: Module) -> list[tuple[str, dict[str, int], list[int]]]:
    """The meshes that a module names: each one's name, the sizes of its axes, and its devices where
    they are in another order than their own.
    """
    ops = [op for op in mlir.operations(module.body) if op.name == MESH]
    return [(mlir.text_attribute(op, "sym_name"), *_mesh(op.attributes["mesh"])) for op in ops]


def _mesh(attribute: ir.Attribute) -> tuple[dict[str, int], list[int]]:
    mesh = cast(Any, sdy).MeshAttr(attribute)
    axes = map(cast(Any, sdy).MeshAxisAttr, mesh.axes)
    return {str(axis.name): int(axis.size) for axis in axes}, list(mesh.device_ids)


def is_annotation(op: Operation) -> bool:
    """Whether the op returns its operand, and says no more than where it lies."""
    named = op.name == CUSTOM_CALL and mlir.text_attribute(op, "call_target_name") in CALLS
    alike = [v.type for v in op.operands] == [v.type for v in op.results]
    return (named or op.name in OPS) and alike


def placed(value: Value) -> Value:
    """The value itself, before ops that say where it lies."""
    op = mlir.defining_operation(value)
    while op is not None and is_annotation(op):
        value = op.operands[0]
        op = mlir.defining_operation(value)
    return value


def _drop_attributes(op: Operation, kind: str) -> None:
    attributes = op.attributes
    for name in ATTRIBUTES:
        if name in attributes:
            del attributes[name]
    if kind == "func.func":
        for ports in ("arg_attrs", "res_attrs"):
            if ports in op.attributes:
                kept = [_kept(entry) for entry in cast(Any, op.attributes[ports])]
                op.attributes[ports] = ir.ArrayAttr.get(kept, mlir.context())


def _kept(attributes: Any) -> ir.Attribute:
    """The attributes of one argument or result but for those that place it."""
    entries = ((entry.name, entry.attr) for entry in ir.DictAttr(attributes))
    with mlir.context():
        return ir.DictAttr.get({name: value for name, value in entries if name not in ATTRIBUTES})
