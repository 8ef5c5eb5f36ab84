"""Example shards: over how many devices a call's examples lie, as arguments and the mesh tell."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType

from hlo_surgery.requests.leaves import kind_of


def example_shards(arrays: Sequence[Any], axes: Mapping[int, int]) -> int:
    """Shards of the batch arguments along their example axes; `axes`: by number of the array.

    Of arrays that are being traced the type may tell; where it does not, the mesh of `jax.set_mesh`
    is taken to have the examples along all its axes that XLA partitions for.
    """
    found = [_shards_of(arrays[number], axis) for number, axis in axes.items()]
    counts = [count for count in found if count is not None]
    return math.lcm(*counts) if counts else _ambient()


def _shards_of(array: Any, axis: int) -> int | None:
    """None where nothing is known of an array's sharding."""
    if not _is_placed(array):
        return 1
    if (
        isinstance(array, Tracer)
        and AxisType.Explicit not in kind_of(array).sharding.mesh.axis_types
    ):
        return None
    sharding: Any = kind_of(array).sharding if isinstance(array, Tracer) else array.sharding
    return max(array.shape[axis] // max(sharding.shard_shape(array.shape)[axis], 1), 1)


def _is_placed(array: Any) -> bool:
    """Whether a leaf may lie on several devices; shapes from which one compiles say it too."""
    is_shape = isinstance(array, jax.ShapeDtypeStruct) and array.sharding is not None
    return isinstance(array, jax.Array) or is_shape


def _ambient() -> int:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    sizes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return math.prod(size for size, kind in sizes if kind != AxisType.Manual)
