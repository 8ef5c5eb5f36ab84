"""Logical axes: what each dimension is called, and along which axis of a mesh it lies.

A layout is a dict from names to mesh axes; a name that it lacks is not split. The mesh always has
the axes "data" and "model", and one of them may be of length one.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Layout = Mapping[str, str]

LAYOUTS: dict[str, Layout] = {
    "data": {"examples": "data"},
    "fsdp": {"examples": "data", "width": "data"},
    "fsdp_tensor": {
        "examples": "data",
        "width": "data",
        "heads": "model",
        "hidden": "model",
        "vocabulary": "model",
    },
}


def mesh_over(devices: Any, model: int = 1) -> Mesh:
    """A mesh over these devices, so many of them along "model"."""
    grid = np.array(devices).reshape(-1, model)
    return Mesh(grid, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def spec(layout: Layout, names: tuple[str, ...]) -> P:
    """Where an array lies whose dimensions have these names."""
    return P(*(layout.get(name) for name in names))


def shardings(mesh: Mesh, layout: Layout, axes: Any) -> Any:
    """The shardings of a pytree of tuples of names."""

    def of(names: tuple[str, ...]) -> NamedSharding:
        return NamedSharding(mesh, spec(layout, names))

    return jax.tree.map(of, axes, is_leaf=lambda x: isinstance(x, tuple))


def place(layout: Layout, x: jax.Array, *names: str) -> jax.Array:
    """The array, held to lie by the layout wherever a mesh is in use."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec(layout, names))


def shardings_of_state(state: Any, params: Any, placed: Any) -> Any:
    """An optimizer's state lies as the parameters do: an array whose path ends as a parameter's.

    The others, which are numbers and keys, are on every device.
    """
    places = dict(jax.tree.leaves_with_path(placed))
    shapes = {path: leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}
    everywhere = NamedSharding(next(iter(places.values())).mesh, P())

    def of(path: Any, leaf: Any) -> NamedSharding:
        for own, shape in shapes.items():
            if path[-len(own) :] == own and leaf.shape == shape:
                return places[own]
        return everywhere

    return jax.tree.map_with_path(of, state)


def structs(shapes: Any, placed: Any) -> Any:
    """The shapes of a pytree with where each array lies, for what is compiled or read ahead."""

    def struct(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(struct, shapes, placed)
