"""Kernels on several devices: given a kernel of a program for each device, a call for all at once.

    custom_call @tpu_custom_call(%x : 2x8) on each of    =>    custom_call @tpu_custom_call(%x :
    four devices along "data"                                  4x2x8) {over_devices = [["data"]]}

XLA cannot split a kernel. So at the end each device has the kernel to itself again:

    manual_computation(%x : 4x2x8) in_shardings = [{"data"}, {}, {}]
      (%a : 1x2x8) { reshape, the kernel as it was, reshape }
"""

import json
from collections.abc import Iterable
from typing import Any, cast

from hlo_surgery.passes.dataflow.mosaic_kernels import OVER_DEVICES, is_known_kernel, leading
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value, ir, sdy
from hlo_surgery.passes.ir.placement import meshes
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
    extend(varying, op.results)
    with mlir.context():
        op.attributes[OVER_DEVICES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in axes])


def over_devices(module: Module) -> list[Operation]:
    """The kernels that are called for several devices at once."""
    ops = mlir.all_operations(module)
    return [op for op in ops if leading(op) and is_known_kernel(op)]


def call_on_each(module: Module) -> None:
    """Give each device its kernels to itself."""
    for op in over_devices(module):
        axes = [str(name.value) for name in cast(Any, op.attributes[OVER_DEVICES])]
        mesh, names = next((mesh, [*n]) for mesh, n, _ in meshes(module) if n.keys() >= {*axes})
        _wrap(op, mesh, axes, names)


def _wrap(op: Operation, mesh: str, axes: list[str], names: list[str]) -> None:
    lead = len(axes)
    with mlir.context(), op.location, ir.InsertionPoint(op):
        placed = [_shardings(mesh, axes, values) for values in (op.operands, op.results)]
        manual = ir.Attribute.parse(f"#sdy<manual_axes{{{', '.join(map(_quoted, names))}}}>")
        kinds, operands = [v.type for v in op.results], list(op.operands)
        made = _sdy.ManualComputationOp(kinds, operands, *placed, manual).operation
        block = made.regions[0].blocks.append(*(_part(v, [1] * lead, lead) for v in operands))
    with mlir.context(), op.location, ir.InsertionPoint(block):
        own = [_reshaped(a, _part(a, [], lead)) for a in block.arguments]
        kernel = ir.Operation.create(
            op.name, [_part(v, [], lead) for v in op.results], own, _own_attributes(op)
        )
        _sdy.ReturnOp([_reshaped(v, _part(v, [1] * lead, 0)) for v in kernel.results])
    mlir.replace(op, mlir.results(made))


def _own_attributes(op: Operation) -> dict[str, ir.Attribute]:
    """The kernel's, as it was written for one device."""
    found = {name: x for name, x in mlir.attributes(op).items() if name != OVER_DEVICES}
    return {name.removeprefix(WAITING): x for name, x in found.items()}


def _shardings(mesh: str, axes: list[str], values: Iterable[Value]) -> ir.Attribute:
    """Along these axes in front, and no others."""
    ranks = [len(mlir.shape(v)) - len(axes) for v in values]
    front = [f"{{{_quoted(name)}}}" for name in axes]
    rows = [f"<@{_quoted(mesh)}, [{', '.join([*front, *['{}'] * n])}]>" for n in ranks]
    return ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(rows)}]>")


def _quoted(name: str) -> str:
    return json.dumps(name)


def _part(value: Value, front: list[int], dropped: int) -> ir.Type:
    """The type of a value with other dimensions in front."""
    shape = [*front, *mlir.shape(value)[dropped:]]
    return ir.RankedTensorType.get(shape, cast(ir.Type, mlir.element_type(value)))


def _reshaped(value: Value, kind: ir.Type) -> Value:
    return ir.Operation.create("stablehlo.reshape", [kind], [value]).results[0]
