"""Named mesh: given a traced function, the mesh of the devices that its sharding constraints name.

b = sharding_constraint[sharding=NamedSharding(mesh, P("data"))] a    =>    mesh
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hlo_surgery.passes.emit.host_calls import nested_equations


def named_mesh(jaxpr: Jaxpr) -> Any:
    """The first of several, which are on the same devices; None where there is none. Where
    `jax.shard_map` has a kernel, its mesh counts as named.

    Inside `jax.shard_map` a function runs on one device's part, and there is none either.
    """
    around = jax.sharding.get_abstract_mesh()
    if AxisType.Manual in around.axis_types:
        return None
    named = map(_mesh_of, nested_equations(jaxpr))
    return next((mesh for mesh in named if mesh is not None), None)


def among_devices(mesh: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arrays, jitted for the devices of a mesh, wherever on it its arrays lie.

    `jax.jit` looks for devices in the constraints that it traces, and sees none in a module.
    """

    def on_mesh(first: Any, *others: Any) -> Any:
        if AxisType.Explicit not in mesh.axis_types:
            anywhere = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * jnp.ndim(first))
            first = jax.lax.with_sharding_constraint(first, NamedSharding(mesh, anywhere))
        return function(first, *others)

    return jax.jit(on_mesh)


def _mesh_of(eqn: Any) -> Any:
    """The mesh that an equation names; None where it names none."""
    if eqn.primitive.name in ("sharding_constraint", "reshard"):
        shardings = [v for v in eqn.params.values() if isinstance(v, NamedSharding)]
        return shardings[0].mesh if shardings and not shardings[0].mesh.empty else None
    has_kernel = eqn.primitive.name == "shard_map" and any(
        inner.primitive.name == "pallas_call" for inner in nested_equations(eqn.params["jaxpr"])
    )
    # In the module too each device has the kernel to itself.
    return eqn.params["mesh"] if has_kernel else None
