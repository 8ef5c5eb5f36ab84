"""Varying: given a program for each device, the mesh axes along which each value differs.

    manual_computation(%x) in_shardings = [{"data"}] (%a) {
        %y = tanh %a
        %z = all_reduce %y over "data" }    =>    %a: ("data",), %y: ("data",), %z: ()

Along an axis differs what is handed out in parts along it, and all that is made of such, up to
what exchanges values along it.

Device values: given along which mesh axes values differ, arrays that hold all devices' at once.

    %y : 2x3 on each device, differs along "data" of {"data": 4, "model": 2}      =>     %y : 4x2x3

There is a leading dimension for each such axis, in the order of the mesh.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hlo_surgery.passes.dataflow.numbers import Counters, Told
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of
from hlo_surgery.passes.ir.mlir import (
    Operation,
    Operations,
    Shape,
    Value,
    Values,
    closure,
    ir,
    stablehlo,
)
from hlo_surgery.passes.normalise.collectives import (
    Collective,
    Mesh,
    Names,
    collective_of,
    device_ids,
    manual_axes,
    sharded_axes,
    shardings,
)
from hlo_surgery.passes.normalise.out_of_scope import COLLECTIVES, MANUAL
from hlo_surgery.passes.raising.leading_dims import set_shape

# Operands that may be a scalar whatever the others' shape: a predicate, and bounds.
SCALARS = {"stablehlo.select": (0,), "stablehlo.clamp": (0, 2)}


@dataclass
class Varying:
    """The mesh, and the axes along which each value differs. Values that are not listed are the
    same on all devices.

    `numbers`: the values made of device numbers alone, in the mesh's shape. `collectives`: how
    results come about that devices exchange.
    """

    mesh: Mesh
    numbers: Counters
    collectives: dict[Value, Collective]
    axes: dict[Value, Names] = field(default_factory=dict)

    def of(self, value: Value) -> Names:
        """The axes along which the value differs, in the order of the mesh."""
        return self.axes.get(value, ())

    def joined(self, values: Iterable[Value]) -> Names:
        """The axes along which any of the values differs."""
        return self.in_order(name for v in values for name in self.of(v))

    def in_order(self, names: Iterable[str]) -> Names:
        """Axes in the order of the mesh, each once."""
        found = set(names)
        return tuple(name for name in self.mesh if name in found)

    def sizes(self, lead: Names) -> Shape:
        """How many devices there are along each axis."""
        return tuple(self.mesh[name] for name in lead)


def aligned(
    varying: Varying, value: Value, lead: Names, before: Operation, local: Shape | None = None
) -> Value:
    """The value repeated along axes that it lacks, and to a local shape if a scalar a device."""
    own = varying.of(value)
    shape = mlir.shape(value)[len(own) :]
    if own == lead and local in (None, shape):
        return value
    places = [*map(lead.index, own), *(len(lead) + d for d in range(len(shape)))]
    with mlir.context(), before.location, ir.InsertionPoint(before):
        kind = mlir.tensor_type(value, (*varying.sizes(lead), *(local or shape)))
        return stablehlo.broadcast_in_dim(kind, value, places)


def align_operands(varying: Varying, op: Operation, leads: Sequence[Names]) -> None:
    """Repeat the first operands along the axes that they lack. A scalar that stands for all may
    stay alone.
    """
    scalars = SCALARS.get(op.name, ())
    local = mlir.shape(op.result) if scalars else None
    for i, lead in enumerate(leads):
        operand = op.operands[i]
        if i not in scalars or mlir.shape(operand):
            op.operands[i] = aligned(varying, operand, lead, op, local)


def extend(varying: Varying, values: Iterable[Value]) -> None:
    """Give values their leading dimensions in place."""
    for value in values:
        set_shape(value, (*varying.sizes(varying.of(value)), *mlir.shape(value)))


def replace(varying: Varying, op: Operation, values: Values) -> None:
    """Other values in place of an op's results."""
    for result, value in zip(op.results, values, strict=True):
        rename(varying, result, value)
    op.erase()


def rename(varying: Varying, old: Value, new: Value) -> None:
    """The new value for the old one, which is to go: another may come to lie at its address."""
    varying.axes[new] = varying.axes.pop(old, ())
    varying.numbers.pop(old, None)
    varying.collectives.pop(old, None)
    old.replace_all_uses_with(new)


NUMBER = "stablehlo.partition_id"


def find_varying(main: Operation, mesh: Mesh) -> Varying:
    """The axes of all values in main. Raises Refusal where an exchange is not known."""
    ops = mlir.nested_operations(main)
    manual = [op for op in ops if op.name == MANUAL]
    # On a single device jax.shard_map leaves its collectives in main itself.
    inside = [each for op in manual for each in mlir.nested_operations(op)] if mesh else ops
    collectives = dict[Value, Collective]()
    for op in (op for op in inside if op.name in COLLECTIVES - {NUMBER}):
        collectives |= dict.fromkeys(op.results, collective_of(op, mesh))
    varying = Varying(mesh, _numbers(inside, mesh), collectives)
    handed = [argument for op in manual for argument in mlir.blocks(op)[0].arguments]
    dims = [each for op in manual for each in shardings(op, "in_shardings", mesh)]
    for number, name in enumerate(mesh):
        starts = [v for v, own in zip(handed, dims, strict=True) if name in sharded_axes(own)]
        starts += [v for v, known in collectives.items() if known.differ and name in known.axes]
        starts += [v for v, x in varying.numbers.items() if (x != x.take([0], number)).any()]
        for value in closure(starts, partial(_following, varying, name)):
            varying.axes[value] = (*varying.of(value), name)
    return varying


def _numbers(ops: Operations, mesh: Mesh) -> Counters:
    """Scalars that are made of the device's number and of constants, on every device."""
    ids = device_ids(mesh)
    own = [op.results[0] for op in ops if op.name == NUMBER]
    counters = {v: ids.ravel().astype(dtype_of(v)) for v in own}
    told, found = Told(), Counters()
    for value in closure(own, lambda v: [r for user in mlir.users(v) for r in user.results]):
        numbers = None if mlir.shape(value) else told.numbers(value, counters)
        if numbers is not None:
            found[value] = np.broadcast_to(numbers, ids.size).reshape(ids.shape)
    return found


def _following(varying: Varying, axis: str, value: Value) -> Values:
    """What differs along an axis where a value does."""
    found = (v for use in value.uses for v in _through(varying, axis, use))
    return [v for v in found if v not in varying.numbers]


def _through(varying: Varying, axis: str, use: Any) -> Values:
    op, number = use.owner.operation, int(use.operand_number)
    around = op.parent.operation
    returns = not len(op.results) and around.name != "func.func"
    op = around if returns else op
    if op.name == MANUAL:
        handed = mlir.blocks(op)[0].arguments
        apart = axis in manual_axes(op, varying.mesh)
        return [] if returns and apart else [(op.results if returns else handed)[number]]
    if op.name in mlir.CONTROL_FLOW:
        blocks = mlir.blocks(op)
        states = [op.results, *(b.arguments for b in blocks)]
        return [state[number] for state in states if number < len(state)]
    known = varying.collectives.get(op.results[0]) if len(op.results) else None
    if known is not None and axis in known.axes:
        return []
    return [op.results[number]] if op.name == mlir.BARRIER or known else mlir.results(op)
