"""Device mesh: given Shardy's attributes, the mesh axes of a value's parts, or of device groups.

    sdy.mesh @mesh = <["data"=2, "model"=4]>                            =>  {"data": 2, "model": 4}
    in_shardings = [<@mesh, [{"data"}, {}]>]                            =>  [(("data",), ())]
    all_reduce(%x) {replica_groups = [[0, 1, 2, 3], [4, 5, 6, 7]]}      =>  ("model",)

Axes along which there is one device alone are left out throughout.
"""

import math
from collections.abc import Iterator
from itertools import permutations
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir.mlir import Module, Operation, ir, sdy, stablehlo
from hlo_surgery.passes.ir.placement import meshes

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
    found = [(list(axes.items()), ids) for _, axes, ids in meshes(module) if axes]
    replicas, partitions = (
        _count(module, f"mhlo.num_{name}") for name in ("replicas", "partitions")
    )
    if not found and replicas == partitions == 1:
        return {}
    if not found or replicas != 1 or any(each != (found[0][0], []) for each in found):
        return None
    return {name: size for name, size in found[0][0] if size > 1}


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
    values = _sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
    found = [_sdy.TensorShardingAttr(value) for value in values]
    dims = [
        [_axes(_sdy.DimensionShardingAttr(d).axes) for d in s.dimension_shardings] for s in found
    ]
    if any(list(s.unreduced_axes) for s in found) or any(None in each for each in dims):
        return None
    manual = manual_axes(op, mesh)
    return [tuple(tuple(n for n in axes or () if n in manual) for axes in each) for each in dims]


def group_axes(op: Operation, mesh: Mesh) -> Names | None:
    """The axes along which a collective's groups lie, in the group's order; None if along none."""
    groups = op.attributes["replica_groups"]
    if mesh and not _is_over_partitions(op):
        return None
    if _stablehlo.ReplicaGroupMeshAxesAttr.isinstance(groups):
        names = _axes(map(_stablehlo.AxisRefAttr, _stablehlo.ReplicaGroupMeshAxesAttr(groups).axes))
        return None if names is None else tuple(name for name in names if name in mesh)
    rows = _sorted(np.array(ir.DenseIntElementsAttr(groups)))
    ids = device_ids(mesh)
    return next((o for o in _orders(mesh) if _sorted(_groups(ids, o, mesh)) == rows), None)


def device_ids(mesh: Mesh) -> npt.NDArray[np.int64]:
    """The number of each device of the mesh: `{"a": 2, "b": 2}` -> [[0, 1], [2, 3]]."""
    return np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))


def sources_along(op: Operation, mesh: Mesh) -> tuple[Names, list[int]] | None:
    """Of who sends to whom: the fewest axes along which that is alike at all places along others,
    and from which place along these each receives; -1 for what none sends to. None of replicas.
    """
    if "channel_handle" not in op.attributes:
        return None
    senders, receivers = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])).T
    ids = device_ids(mesh)
    sent = np.full(ids.size, -1)
    sent[receivers] = senders
    for axes in _orders(mesh):
        own, found = _groups(ids, axes, mesh), _groups(sent.reshape(ids.shape), axes, mesh)
        first = [[*own[0]].index(s) if s in own[0] else -1 for s in found[0]]
        if (np.where(np.array(first) < 0, -1, own[:, first]) == found).all():
            return axes, first
    return None


def _orders(mesh: Mesh) -> Iterator[Names]:
    """Some axes, in any order; the fewest first."""
    return (order for count in range(len(mesh) + 1) for order in permutations(mesh, count))


def _axes(refs: Any) -> Names | None:
    """The axes by name; None where one is a part of an axis."""
    known = _stablehlo.AxisRefAttr
    found = [ref if isinstance(ref, known) else _sdy.AxisRefAttr(ref) for ref in refs]
    parted = any(ref.sub_axis_info is not None for ref in found)
    return None if parted else tuple(ref.name for ref in found)


def _is_over_partitions(op: Operation) -> bool:
    """Whether the groups are of partitions of one program, and not of replicas."""
    channel = (
        "channel_handle" in op.attributes
        and _stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle > 0
    )
    return channel and (op.name not in GLOBAL_IDS or "use_global_device_ids" in op.attributes)


def _groups(ids: npt.NDArray[Any], order: Names, mesh: Mesh) -> npt.NDArray[Any]:
    """What each device of a mesh has, a row for those that differ along these axes alone."""
    last = range(len(mesh) - len(order), len(mesh))
    moved = np.moveaxis(ids, [[*mesh].index(name) for name in order], last)
    return moved.reshape(-1, math.prod(mesh[name] for name in order))


def _sorted(rows: npt.NDArray[Any]) -> list[list[int]]:
    return sorted(cast(list[list[int]], rows.tolist()))
