"""Collectives: given an op that exchanges values, the same on an array of all devices' values.

    psum over "data" of x : 4 devices, each 2x3      =>    sum of x : 4x2x3 over dimension 0

Every device's value lies at its place along leading dimensions, one for each mesh axis. `lead`
names them in order.

Device mesh: given Shardy's attributes, the mesh axes of a value's parts, or of device groups.

    sdy.mesh @mesh = <["data"=2, "model"=4]>                            =>  {"data": 2, "model": 4}
    in_shardings = [<@mesh, [{"data"}, {}]>]                            =>  [(("data",), ())]
    all_reduce(%x) {replica_groups = [[0, 1, 2, 3], [4, 5, 6, 7]]}      =>  ("model",)

Axes along which there is one device alone are left out throughout.

Shards: given an array and its sharded dimensions, its parts along leading dimensions; and back.

    8x3, sharded ("data",), ()  on  {"data": 4}     =>     4x2x3     =>     8x3

`lead` names the leading dimensions that the array has already.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.dataflow.numbers import Numbers
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import has_numbers
from hlo_surgery.passes.ir.mlir import Module, Operation, ir, sdy, stablehlo
from hlo_surgery.passes.ir.modules import meshes, placed
from hlo_surgery.passes.ir.traits import integer
from hlo_surgery.passes.normalise.out_of_scope import refusal

Mesh = dict[str, int]
Names = tuple[str, ...]

GLOBAL_IDS = frozenset(
    f"stablehlo.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter")
)


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
    return frozenset(mesh) & frozenset(map(str, sdy.ManualAxesAttr(op.attributes["manual_axes"])))


def shardings(op: Operation, name: str, mesh: Mesh) -> list[tuple[Names, ...]]:
    """Of each operand or result of a manual computation, each dimension's manual axes. Raises
    Refusal where one is split up.
    """
    values = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
    found = [sdy.TensorShardingAttr(value) for value in values]
    dims = [
        [_axes(sdy.DimensionShardingAttr(d).axes) for d in s.dimension_shardings] for s in found
    ]
    if any(list(s.unreduced_axes) for s in found) or any(None in each for each in dims):
        raise refusal(op, "it is sharded over parts of mesh axes")
    manual = manual_axes(op, mesh)
    return [tuple(tuple(n for n in axes or () if n in manual) for axes in each) for each in dims]


def group_axes(op: Operation, mesh: Mesh) -> Names | None:
    """The axes along which a collective's groups lie, in the group's order; None if along none."""
    groups = op.attributes["replica_groups"]
    if mesh and not _is_over_partitions(op):
        return None
    if stablehlo.ReplicaGroupMeshAxesAttr.isinstance(groups):
        names = _axes(map(stablehlo.AxisRefAttr, stablehlo.ReplicaGroupMeshAxesAttr(groups).axes))
        return None if names is None else tuple(name for name in names if name in mesh)
    rows = _sorted(np.array(ir.DenseIntElementsAttr(groups)))
    ids = device_ids(mesh)
    return next((o for o in _orders(mesh) if _sorted(_groups(ids, o, mesh)) == rows), None)


def device_ids(mesh: Mesh) -> Numbers:
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
    known = stablehlo.AxisRefAttr
    found = [ref if isinstance(ref, known) else sdy.AxisRefAttr(ref) for ref in refs]
    parted = any(ref.sub_axis_info is not None for ref in found)
    return None if parted else tuple(ref.name for ref in found)


def _is_over_partitions(op: Operation) -> bool:
    """Whether the groups are of partitions of one program, and not of replicas."""
    channel = (
        "channel_handle" in op.attributes
        and stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle > 0
    )
    return channel and (op.name not in GLOBAL_IDS or "use_global_device_ids" in op.attributes)


def _groups(ids: Numbers, order: Names, mesh: Mesh) -> Numbers:
    """What each device of a mesh has, a row for those that differ along these axes alone."""
    last = range(len(mesh) - len(order), len(mesh))
    moved = np.moveaxis(ids, [[*mesh].index(name) for name in order], last)
    return moved.reshape(-1, math.prod(mesh[name] for name in order))


def _sorted(rows: Numbers) -> list[list[int]]:
    return sorted(cast(list[list[int]], rows.tolist()))


# Of what the devices of a group have, along dimension 0: what each has then, or all have.
Exchange = Callable[[Array], Array]


@dataclass(frozen=True)
class Collective:
    """Over which axes values are exchanged, whether devices get different ones, and how."""

    axes: Names
    differ: bool
    exchange: Exchange

    def on_arrays(self, x: Array, lead: Names) -> Array:
        """What the devices get of what they have, these along leading dimensions."""
        places = [lead.index(name) for name in self.axes]
        ahead = jnp.moveaxis(x, places, range(len(places)))
        sizes, rest = ahead.shape[: len(places)], ahead.shape[len(places) :]
        function = self.exchange
        for _ in range(len(lead) - len(places)):
            function = jax.vmap(function, 1, 1 if self.differ else 0)
        made = function(ahead.reshape(-1, *rest))
        if not self.differ:
            return made
        return jnp.moveaxis(made.reshape(*sizes, *made.shape[1:]), range(len(places)), places)


# By the op that combines two devices' values, as JAX has them of the devices of a named axis.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "stablehlo.add": lax.psum,
    "stablehlo.maximum": lax.pmax,
    "stablehlo.minimum": lax.pmin,
}
GROUP = "group"


def collective_of(op: Operation, mesh: Mesh) -> Collective:
    """The collective on arrays. Raises Refusal if its groups are no mesh axes, or no rule covers
    it.
    """
    if op.name == "stablehlo.collective_permute" and (found := sources_along(op, mesh)):
        axes, sources = found
        return Collective(axes, True, lambda x: _sent(x, sources))
    axes = group_axes(op, mesh) if op.name in RULES else None
    rule = None if axes is None else RULES[op.name](op)
    if axes is None or rule is None:
        why = "its devices are not all those along some axes of one mesh, or it combines them"
        raise refusal(op, f"{why} unknown how")
    return Collective(axes, op.name in DIFFER, rule)


def _all_reduce(op: Operation) -> Exchange | None:
    name = _combining(op)
    return _among_all(REDUCTIONS[name], None) if name in REDUCTIONS else None


def _all_gather(op: Operation) -> Exchange:
    return _among_all(lax.all_gather, None, axis=integer(op, "all_gather_dim"), tiled=True)


def _reduce_scatter(op: Operation) -> Exchange | None:
    dim = integer(op, "scatter_dimension")
    adds = _combining(op) == "stablehlo.add"
    return _among_all(lax.psum_scatter, 0, scatter_dimension=dim, tiled=True) if adds else None


def _all_to_all(op: Operation) -> Exchange:
    split, concat = integer(op, "split_dimension"), integer(op, "concat_dimension")
    return _among_all(lax.all_to_all, 0, split_axis=split, concat_axis=concat, tiled=True)


def _among_all(function: Callable[..., Any], out: int | None, **how: Any) -> Exchange:
    """JAX's exchange along a named axis, of what all devices have."""
    return jax.vmap(partial(function, axis_name=GROUP, **how), 0, out, axis_name=GROUP)


RULES: dict[str, Callable[[Operation], Exchange | None]] = {
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_gather": _all_gather,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.all_to_all": _all_to_all,
}
DIFFER = frozenset(["stablehlo.reduce_scatter", "stablehlo.all_to_all"])


def _sent(x: Array, sources: list[int]) -> Array:
    """What each device receives, zeros if nothing."""
    return lax.concatenate([x[s : s + 1] if s >= 0 else jnp.zeros_like(x[:1]) for s in sources], 0)


def _combining(op: Operation) -> str:
    """The op that combines two devices' values, whose result the body returns; "" of another body,
    and of truth values, which no op adds.
    """
    block = mlir.blocks(op)[0]
    found = mlir.defining_operation(placed(mlir.returned(block)[0]))
    if found is None or set(map(placed, found.operands)) != set(block.arguments):
        return ""
    return found.name if has_numbers(op) else ""


Dims = tuple[Names, ...]


def sharded_axes(dims: Dims) -> frozenset[str]:
    """All mesh axes over which some dimension is sharded."""
    return frozenset(name for axes in dims for name in axes)


def split(x: Array, lead: Names, dims: Dims, mesh: Mesh) -> Array:
    """The parts of the whole, along further leading dimensions."""
    local = [
        n // math.prod(mesh[name] for name in axes)
        for n, axes in zip(x.shape[len(lead) :], dims, strict=True)
    ]
    has = [*lead, *_in_turn(dims)]
    parts = x.reshape([mesh[each] if isinstance(each, str) else local[each] for each in has])
    wanted = [*(name for name in mesh if name in has), *range(len(dims))]
    return lax.transpose(parts, [has.index(each) for each in wanted])


def put_together(x: Array, lead: Names, kept: Names, dims: Dims, mesh: Mesh) -> Array:
    """The whole of the parts, which differ along all axes kept or sharded over. Devices along
    others should agree: it is the first one's.
    """
    wanted = sharded_axes(dims).union(kept)
    x = x[tuple(slice(None) if name in wanted else 0 for name in lead)]
    has = [*(name for name in lead if name in wanted), *range(len(dims))]
    local = x.shape[len(wanted) :]
    whole = [n * math.prod(mesh[m] for m in axes) for n, axes in zip(local, dims, strict=True)]
    parts = lax.transpose(x, [has.index(each) for each in (*kept, *_in_turn(dims))])
    return parts.reshape([*(mesh[name] for name in kept), *whole])


def _in_turn(dims: Dims) -> list[str | int]:
    """Each dimension by its number, behind the axes over which it is sharded."""
    return [each for d, axes in enumerate(dims) for each in (*axes, d)]


def agreed(x: Array) -> Array:
    """The array, in a way that no sum over examples passes: that devices agree is not proved."""
    return x if jnp.iscomplexobj(x) else lax.max(x, x)
