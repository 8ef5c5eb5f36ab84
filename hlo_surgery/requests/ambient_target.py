"""Ambient target: the device that a program is being traced for, as the mesh in use tells."""

import jax

from hlo_surgery.planning.rooflines import ROOFLINES, row_of


def ambient_target() -> str | None:
    """Its row among the rooflines, as of a mesh of `jax.set_mesh` for a topology that is not here.

    None where there is no mesh, it is of the devices that JAX uses anyway, or of a kind without a
    row.

    >>> with jax.set_mesh(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])):
    ...     ambient_target() is None
    True
    """
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    row = None if device is None else row_of(device)
    return row if row in ROOFLINES and row != row_of(jax.devices()[0]) else None
