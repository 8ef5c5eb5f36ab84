"""Device values: given along which mesh axes values differ, arrays that hold all devices' at once.

    %y : 2x3 on each device, differs along "data" of {"data": 4, "model": 2}      =>     %y : 4x2x3

There is a leading dimension for each such axis, in the order of the mesh.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, ir, stablehlo
from hlo_surgery.passes.normalise.devices.collectives import Collective
from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names
from hlo_surgery.passes.raising.leading_dims import Sizes, set_shape

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
    numbers: dict[Value, npt.NDArray[Any]]
    collectives: dict[Value, Collective]
    axes: dict[Value, Names] = field(default_factory=dict[Value, Names])

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

    def sizes(self, lead: Names) -> Sizes:
        """How many devices there are along each axis."""
        return tuple(self.mesh[name] for name in lead)


def aligned(
    varying: Varying, value: Value, lead: Names, before: Operation, local: Sizes | None = None
) -> Value:
    """The value repeated along axes that it lacks, and to a local shape if a scalar a device."""
    own = varying.of(value)
    shape = mlir.shape(value)[len(own) :]
    if own == lead and local in (None, shape):
        return value
    places = [*map(lead.index, own), *(len(lead) + d for d in range(len(shape)))]
    with mlir.context(), before.location, ir.InsertionPoint(before):
        element = cast(ir.Type, mlir.element_type(value))
        sizes = (*varying.sizes(lead), *(local or shape))
        kind = ir.RankedTensorType.get(sizes, element)
        return cast(Any, stablehlo).broadcast_in_dim(kind, value, places)


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


def extend(varying: Varying, values: Iterable[Value]) -> None:
    """Give values their leading dimensions in place."""
    for value in values:
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
    old.replace_all_uses_with(new)
