"""Device mesh: given Shardy's attributes, the mesh axes of a value's parts, or of device groups.

    sdy.mesh @mesh = <["data"=2, "model"=4]>                            =>  {"data": 2, "model": 4}
    in_shardings = [<@mesh, [{"data"}, {}]>]                            =>  [(("data",), ())]
    all_reduce(%x) {replica_groups = [[0, 1, 2, 3], [4, 5, 6, 7]]}      =>  ("model",)

Axes along which there is one device alone are left out throughout.
"""

import math
from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, ir, sdy, stablehlo

Mesh = dict[str, int]
Names = tuple[str, ...]

GLOBAL_IDS = frozenset(
    f"stablehlo.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter")
)
# The bindings of these dialects come without types.
_sdy, _stablehlo = cast(Any, sdy), cast(Any, stablehlo)


def mesh_of(module: Module) -> Mesh | None:
    """The sizes of the mesh's axes, major first; none for a single device.

    None unless the module has one mesh, in the devices' own order.
    """
    meshes = [
        _sdy.MeshAttr(op.attributes["mesh"])
        for op in mlir.operations(module.body)
        if op.name == "sdy.mesh"
    ]
    sizes = [
        {axis.name: axis.size for axis in map(_sdy.MeshAxisAttr, mesh.axes)} for mesh in meshes
    ]
    used = [list(axes.items()) for axes in sizes if axes]
    ordered = not any(
        list(mesh.device_ids) for mesh, axes in zip(meshes, sizes, strict=True) if axes
    )
    replicas, partitions = (
        _count(module, f"mhlo.num_{name}") for name in ("replicas", "partitions")
    )
    if not used and replicas == partitions == 1:
        return {}
    if not used or not ordered or replicas != 1 or any(axes != used[0] for axes in used):
        return None
    return {name: size for name, size in used[0] if size > 1}


def _count(module: Module, name: str) -> int:
    attributes = cast(Any, module.operation).attributes
    return int(attributes[name].value) if name in attributes else 1


def manual_axes(op: Operation, mesh: Mesh) -> frozenset[str]:
    """The axes of a manual computation whose devices it tells apart."""
    return frozenset(mesh) & frozenset(map(str, _sdy.ManualAxesAttr(op.attributes["manual_axes"])))


def shardings(op: Operation, name: str, mesh: Mesh) -> list[tuple[Names, ...]] | None:
    """Of each operand or result of a manual computation, each dimension's manual axes; None where
    one is split up.
    """
    manual = manual_axes(op, mesh)
    found = [
        _sdy.TensorShardingAttr(s)
        for s in _sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
    ]
    refs = [
        [_axes(_sdy.DimensionShardingAttr(d).axes) for d in s.dimension_shardings] for s in found
    ]
    if any(list(s.unreduced_axes) for s in found) or any(
        axes is None for dims in refs for axes in dims
    ):
        return None
    return [tuple(tuple(a for a in axes or () if a in manual) for axes in dims) for dims in refs]


def group_axes(op: Operation, mesh: Mesh) -> Names | None:
    """The axes along which a collective's groups lie, in the group's order; None if along none."""
    groups = op.attributes["replica_groups"]
    if mesh and not _is_over_partitions(op):
        return None
    if _stablehlo.ReplicaGroupMeshAxesAttr.isinstance(groups):
        names = _axes(map(_stablehlo.AxisRefAttr, _stablehlo.ReplicaGroupMeshAxesAttr(groups).axes))
        return None if names is None else tuple(name for name in names if name in mesh)
    rows = _sorted(np.array(ir.DenseIntElementsAttr(groups)))
    orders = (order for count in range(len(mesh) + 1) for order in permutations(mesh, count))
    return next((order for order in orders if _sorted(_groups(order, mesh)) == rows), None)


def axis_groups(manual: Sequence[Operation], mesh: Mesh) -> list[Names]:
    """All axes, those together that shard one dimension of an argument of the program.

    Only neighbours, in the order of the mesh: together they are then like one axis.
    """
    names = list(mesh)
    tied: set[tuple[str, str]] = set()
    for op in manual:
        for operand, dims in zip(
            op.operands, shardings(op, "in_shardings", mesh) or [], strict=False
        ):
            if mlir.defining_operation(operand) is None:
                tied |= {pair for axes in dims for pair in pairwise(axes)}
    groups = [[name] for name in names[:1]]
    for before, name in pairwise(names):
        if (before, name) in tied:
            groups[-1].append(name)
        else:
            groups.append([name])
    return [tuple(group) for group in groups]


def device_ids(mesh: Mesh) -> npt.NDArray[np.int64]:
    """The number of each device of the mesh: `{"a": 2, "b": 2}` -> [[0, 1], [2, 3]]."""
    return np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))


def in_order(axes: frozenset[str], mesh: Mesh) -> Names:
    """A set of axes, in the order of the mesh."""
    return tuple(name for name in mesh if name in axes)


def _axes(refs: Any) -> Names | None:
    """The axes by name; None where one is a part of an axis."""
    found = list(refs)
    refs = [
        ref if isinstance(ref, _stablehlo.AxisRefAttr) else _sdy.AxisRefAttr(ref) for ref in found
    ]
    return (
        None
        if any(ref.sub_axis_info is not None for ref in refs)
        else tuple(ref.name for ref in refs)
    )


def _is_over_partitions(op: Operation) -> bool:
    """Whether the groups are of partitions of one program, and not of replicas."""
    channel = (
        "channel_handle" in op.attributes
        and _stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle > 0
    )
    return channel and (op.name not in GLOBAL_IDS or "use_global_device_ids" in op.attributes)


def _groups(order: Names, mesh: Mesh) -> npt.NDArray[np.int64]:
    names = list(mesh)
    last = range(len(mesh) - len(order), len(mesh))
    moved = np.moveaxis(device_ids(mesh), [names.index(name) for name in order], last)
    return moved.reshape(-1, math.prod(mesh[name] for name in order))


def _sorted(rows: npt.NDArray[Any]) -> list[list[int]]:
    return sorted(cast(list[list[int]], rows.tolist()))
