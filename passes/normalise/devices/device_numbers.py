"""Device numbers: given an op of the device's own number, its result on every device of the mesh.

    %n = partition_id ; %i = remainder %n, 4
        on {"data": 2, "model": 4}    =>  [[0, 1, 2, 3], [0, 1, 2, 3]]

So what depends on the place along one axis is known not to depend on the others.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names, device_ids

Numbers = npt.NDArray[Any]

EVALUATED: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.divide": np.floor_divide,
    "stablehlo.remainder": np.remainder,
}


def numbers_of(op: Operation, known: Mapping[Value, Numbers], mesh: Mesh) -> Numbers | None:
    """A scalar on each device, in the mesh's shape; None if not of device numbers alone."""
    if op.name == "stablehlo.partition_id":
        return device_ids(mesh).astype(dtype_of(op.results[0]))
    if not any(v in known for v in op.operands) or [
        dtype_of(v).kind in "iu" for v in op.results
    ] != [True]:
        return None
    operands = [_operand(v, known) for v in op.operands]
    numbers = [n for n in operands if n is not None and (n >= 0).all()]
    if len(numbers) < len(operands):
        return None
    if op.name == "stablehlo.convert":
        return numbers[0].astype(dtype_of(op.results[0]))
    return EVALUATED[op.name](*numbers) if op.name in EVALUATED and _divides(op, numbers) else None


def axes_of(numbers: Numbers, mesh: Mesh) -> Names:
    """The axes along which the devices have different numbers."""
    return tuple(name for i, name in enumerate(mesh) if (numbers != numbers.take([0], i)).any())


def along(numbers: Numbers, axes: Names, mesh: Mesh) -> Numbers:
    """The numbers along these axes, of the first device along the others."""
    return numbers[tuple(slice(None) if name in axes else 0 for name in mesh)]


def _operand(value: Value, known: Mapping[Value, Numbers]) -> Numbers | None:
    op = mlir.defining_operation(value)
    if value in known:
        return known[value]
    is_scalar_constant = (
        op is not None and op.name == "stablehlo.constant" and mlir.shape(value) == ()
    )
    return elements(op) if op is not None and is_scalar_constant else None


def _divides(op: Operation, numbers: list[Numbers]) -> bool:
    return op.name not in ("stablehlo.divide", "stablehlo.remainder") or bool(
        (numbers[1] > 0).all()
    )
