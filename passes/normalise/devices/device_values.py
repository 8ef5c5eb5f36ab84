"""Device values: given along which mesh axes values differ, arrays that hold all devices' at once.

    %y : 2x3 on each device, differs along "data" of {"data": 4, "model": 2}      =>     %y : 4x2x3

There is a leading dimension for each such axis, in the order of the mesh. Axes over which one
dimension of an argument is sharded together, such as a batch, share one where a value differs along
all of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import jax
from jax import lax

from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.normalise.devices.collectives import Collective
from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names, in_order
from hlo_surgery.passes.normalise.devices.device_numbers import Numbers
from hlo_surgery.passes.raising.leading_dims import set_shape

Sizes = tuple[int, ...]
# Operands that may be a scalar whatever the others' shape: a predicate, and bounds.
SCALARS = {"stablehlo.select": (0,), "stablehlo.clamp": (0, 2)}
Unary = Callable[[jax.Array], jax.Array]


@dataclass
class Varying:
    """The mesh, and the axes along which each value differs. Values that are not listed are the
    same on all devices.

    `groups`: all axes in order, those together that may share a dimension. `numbers`: the values
    made of device numbers alone. `collectives`: how results come about that devices exchange.
    `handed`: arguments of a manual computation that are what another one returned, sharded alike;
    `parts` of whole values are what they then get.
    """

    mesh: Mesh
    groups: list[Names]
    axes: dict[Value, Names] = field(default_factory=dict[Value, Names])
    numbers: dict[Value, Numbers] = field(default_factory=dict[Value, Numbers])
    collectives: dict[Value, Collective] = field(default_factory=dict[Value, Collective])
    handed: set[Value] = field(default_factory=set[Value])
    parts: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def of(self, value: Value) -> Names:
        """The axes along which the value differs, in the order of the mesh."""
        return self.axes.get(value, ())

    def joined(self, values: Sequence[Value]) -> Names:
        """The axes along which any of the values differs."""
        return in_order(frozenset(name for v in values for name in self.of(v)), self.mesh)

    def layout(self, lead: Names) -> list[Names]:
        """The axes that share each leading dimension."""
        found = [tuple(name for name in group if name in lead) for group in self.groups]
        return [names for names in found if names]

    def sizes(self, lead: Names) -> Sizes:
        """The sizes of the leading dimensions."""
        return tuple(math.prod(self.mesh[name] for name in names) for names in self.layout(lead))

    def each(self, lead: Names) -> Sizes:
        """The sizes of the axes, one by one."""
        return tuple(self.mesh[name] for name in lead)

    def local(self, value: Value) -> Sizes:
        """The shape of the value on one device."""
        return mlir.shape(value)[len(self.layout(self.of(value))) :]


def apply(
    varying: Varying, function: Unary, value: Value, sizes: Sizes, shape: Sizes, before: Operation
) -> Value:
    """A function of the value with leading dimensions of these sizes; in another shape."""
    own = (*sizes, *varying.local(value))

    def applied(x: jax.Array) -> tuple[jax.Array]:
        return (function(x.reshape(own)).reshape(shape),)

    return splice([value], applied, before)[0]


def aligned(
    varying: Varying, value: Value, lead: Names, before: Operation, local: Sizes | None = None
) -> Value:
    """The value repeated along axes that it lacks, and to a local shape if a scalar a device."""
    own, shape = varying.of(value), varying.local(value)
    if own == lead and local in (None, shape):
        return value
    has, wanted = varying.layout(own), varying.layout(lead)
    if any(names not in wanted for names in has):
        repeated = partial(
            lax.broadcast_in_dim,
            shape=(*varying.each(lead), *(local or shape)),
            broadcast_dimensions=[
                *map(lead.index, own),
                *(len(lead) + d for d in range(len(shape))),
            ],
        )
        whole = (*varying.sizes(lead), *(local or shape))
        return apply(varying, repeated, value, varying.each(own), whole, before)
    places = [*map(wanted.index, has), *(len(wanted) + d for d in range(len(shape)))]
    with mlir.context(), before.location, ir.InsertionPoint(before):
        sizes = (*varying.sizes(lead), *(local or shape))
        kind = ir.RankedTensorType.get(sizes, cast(ir.Type, mlir.element_type(value)))
        attributes: dict[str, ir.Attribute] = {
            "broadcast_dimensions": ir.DenseI64ArrayAttr.get(places)
        }
        return ir.Operation.create(
            "stablehlo.broadcast_in_dim", [kind], [value], attributes
        ).results[0]


def align_operands(varying: Varying, op: Operation, leads: Sequence[Names]) -> None:
    """Repeat the first operands along the axes that they lack. A scalar that stands for all may
    stay alone.
    """
    scalars = SCALARS.get(op.name, ())
    local = mlir.shape(op.results[0]) if scalars else None
    for i, lead in enumerate(leads):
        operand = op.operands[i]
        if i not in scalars or mlir.shape(operand):
            op.operands[i] = aligned(varying, operand, lead, op, local)


def extend(varying: Varying, value: Value) -> None:
    """Give a value its leading dimensions in place."""
    set_shape(value, (*varying.sizes(varying.of(value)), *mlir.shape(value)))


def replace(varying: Varying, op: Operation, values: Sequence[Value]) -> None:
    """Other values in place of an op's results."""
    for result, value in zip(op.results, values, strict=True):
        rename(varying, result, value)
    op.erase()


def rename(varying: Varying, old: Value, new: Value) -> None:
    """The new value for the old one, which is to go: another may come to lie at its address."""
    varying.axes[new] = varying.axes.pop(old, ())
    varying.numbers.pop(old, None)
    varying.collectives.pop(old, None)
    varying.handed.discard(old)
    old.replace_all_uses_with(new)
