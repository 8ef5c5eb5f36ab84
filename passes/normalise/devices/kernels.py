"""Kernels on several devices: given a kernel of a program for each device, a call for all at once.

    custom_call @tpu_custom_call(%x : 2x8) on each of    =>    custom_call @tpu_custom_call(%x :
    four devices along "data"                                  4x2x8) {over_devices = [["data"]]}

XLA cannot split a kernel. So at the end each device has the kernel to itself again:

    manual_computation(%x : 4x2x8) in_shardings = [{"data"}, {}, {}]
      (%a : 1x2x8) { reshape, the kernel as it was, reshape }
"""

from typing import Any, cast

from hlo_surgery.passes.dataflow.mosaic_kernels import OVER_DEVICES, is_known_kernel, leading
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, sdy
from hlo_surgery.passes.normalise.devices.device_mesh import Names
from hlo_surgery.passes.normalise.devices.device_values import Varying, align_operands, extend

LAYOUTS = ("operand_layouts", "result_layouts")
WAITING = "own_"
_sdy = cast(Any, sdy)


def call_for_all(varying: Varying, op: Operation, axes: Names) -> None:
    """Give a kernel's operands and results their leading dimensions. Layouts, which are for ranks
    as they were, wait under another name.
    """
    align_operands(varying, op, [axes] * len(op.operands))
    for name in LAYOUTS:
        if name in op.attributes:
            op.attributes[WAITING + name] = op.attributes[name]
            del op.attributes[name]
    for result in op.results:
        extend(varying, result)
    with mlir.context():
        rows = [
            ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])
            for names in varying.layout(axes)
        ]
        op.attributes[OVER_DEVICES] = ir.ArrayAttr.get(rows)


def over_devices(module: Module) -> list[Operation]:
    """The kernels that are called for several devices at once."""
    ops = mlir.all_operations(module)
    return [op for op in ops if leading(op) and is_known_kernel(op)]


def call_on_each(module: Module) -> None:
    """Give each device its kernels to itself."""
    meshes = [op for op in mlir.operations(module.body) if op.name == "sdy.mesh"]
    for op in over_devices(module):
        named = next(mesh for mesh in meshes if _has(mesh, _axes(op)))
        _wrap(op, mlir.text_attribute(named, "sym_name"), _names(named))


def _axes(op: Operation) -> list[list[str]]:
    rows = cast(Any, op.attributes[OVER_DEVICES])
    return [[ir.StringAttr(name).value for name in row] for row in rows]


def _names(mesh: Operation) -> list[str]:
    axes = _sdy.MeshAttr(mesh.attributes["mesh"]).axes
    return [_sdy.MeshAxisAttr(axis).name for axis in axes]


def _has(mesh: Operation, axes: list[list[str]]) -> bool:
    return set(_names(mesh)).issuperset(name for row in axes for name in row)


def _wrap(op: Operation, mesh: str, names: list[str]) -> None:
    axes, lead = _axes(op), leading(op)
    with mlir.context(), op.location, ir.InsertionPoint(op):
        placed = [
            _sdy.TensorShardingPerValueAttr.get([_sharding(mesh, axes, v) for v in values])
            for values in (op.operands, op.results)
        ]
        manual = _sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in names])
        kinds, operands = [v.type for v in op.results], list(op.operands)
        made = _sdy.ManualComputationOp(kinds, operands, *placed, manual).operation
        block = made.regions[0].blocks.append(*(_part(v, [1] * lead, lead) for v in operands))
    with mlir.context(), op.location, ir.InsertionPoint(block):
        own = [_reshaped(a, _part(a, [], lead)) for a in block.arguments]
        kernel = ir.Operation.create(
            op.name, [_part(v, [], lead) for v in op.results], own, _own_attributes(op)
        )
        results = [_reshaped(v, _part(v, [1] * lead, 0)) for v in kernel.results]
        _sdy.ReturnOp(results)
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _own_attributes(op: Operation) -> dict[str, ir.Attribute]:
    """The kernel's, as it was written for one device."""
    found = {name: x for name, x in mlir.attributes(op).items() if name != OVER_DEVICES}
    return {name.removeprefix(WAITING): x for name, x in found.items()}


def _sharding(mesh: str, axes: list[list[str]], value: Value) -> Any:
    """Along these axes in front, and no others."""
    rows = [*axes, *([] for _ in mlir.shape(value)[len(axes) :])]
    dims = [
        _sdy.DimensionShardingAttr.get([_sdy.AxisRefAttr.get(name) for name in row], True)
        for row in rows
    ]
    return _sdy.TensorShardingAttr.get(mesh, dims)


def _part(value: Value, front: list[int], dropped: int) -> ir.Type:
    """The type of a value with other dimensions in front."""
    shape = [*front, *mlir.shape(value)[dropped:]]
    return ir.RankedTensorType.get(shape, cast(ir.Type, mlir.element_type(value)))


def _reshaped(value: Value, kind: ir.Type) -> Value:
    return ir.Operation.create("stablehlo.reshape", [kind], [value]).results[0]
