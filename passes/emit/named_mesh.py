"""Named mesh: given a traced function, the mesh of the devices that its sharding constraints name.

b = sharding_constraint[sharding=NamedSharding(mesh, P("data"))] a    =>    mesh
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hlo_surgery.passes.emit.host_calls import inner_jaxprs


def named_mesh(jaxpr: Jaxpr) -> Any:
    """The first of several, which are on the same devices; None where there is none. Where
    `jax.shard_map` has a kernel, its mesh counts as named.

    Inside `jax.shard_map` a function runs on one device's part, and there is none either.
    """
    around = jax.sharding.get_abstract_mesh()
    return None if AxisType.Manual in around.axis_types else _first(jaxpr)


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


def _first(jaxpr: Jaxpr) -> Any:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("sharding_constraint", "reshard"):
            shardings = [v for v in eqn.params.values() if isinstance(v, NamedSharding)]
            if shardings and not shardings[0].mesh.empty:
                return shardings[0].mesh
        if eqn.primitive.name == "shard_map" and _has_kernel(eqn.params.values()):
            return eqn.params["mesh"]
        for inner in inner_jaxprs(eqn.params.values()):
            found = _first(inner)
            if found is not None:
                return found
    return None


def _has_kernel(params: Iterable[Any]) -> bool:
    """Whether there is a kernel in the functions of an equation, which each device has to itself
    in the module too.
    """
    eqns = [eqn for inner in inner_jaxprs(params) for eqn in inner.eqns]
    return any(
        eqn.primitive.name == "pallas_call" or _has_kernel(eqn.params.values()) for eqn in eqns
    )
