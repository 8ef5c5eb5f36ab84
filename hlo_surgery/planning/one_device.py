"""One device: whether all that is planned is known to run on one, as kernels must."""

import math

import jax
from jax.sharding import AxisType


def is_alone(target: str | None) -> bool:
    """Whether nothing is partitioned: each device of a mesh has its own part inside of
    `jax.shard_map`; without a mesh there is no other device, or the target is one chip.

    >>> is_alone("tpu:v5e"), is_alone("tpu:v5e:2x4")
    (True, False)
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        sizes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
        return math.prod(size for size, kind in sizes if kind != AxisType.Manual) == 1
    return jax.device_count() == 1 if target is None else target.count(":") < 2
