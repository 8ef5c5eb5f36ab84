"""Ambient target: the device that a program is being traced for, as the mesh in use tells."""

from collections.abc import Sequence
from typing import Any

import jax

from hlo_surgery.planning.rooflines import ROOFLINES, row_of


def ambient_target() -> str | None:
    """Its row among the rooflines, as of a mesh of `jax.set_mesh` for a topology that is not here;
    or of the only device here, where a plan may take a kernel for it.

    None where there is no mesh, it is of the devices that JAX uses anyway, or of a kind without a
    row.

    >>> with jax.set_mesh(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])):
    ...     ambient_target() is None
    True
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        told: Any = jax.config
        return alone(jax.devices()) if told.jax_default_device is None else None
    device = mesh.abstract_device
    row = None if device is None else row_of(device)
    return row if row in ROOFLINES and row != row_of(jax.devices()[0]) else None


def alone(devices: Sequence[Any]) -> str | None:
    """The row of a device that is the only one, and has kernels that were measured."""
    row = row_of(devices[0])
    measured = row in ROOFLINES and ROOFLINES[row].kernel_rate > 0
    return row if measured and len(devices) == 1 else None
