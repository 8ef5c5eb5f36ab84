"""Over how many devices examples lie, as arrays and shapes say it."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from hlo_surgery.requests.leaves import example_shards

MESH = AbstractMesh((4, 2), ("data", "model"))


@pytest.mark.parametrize(
    ("array", "shards"),
    [
        (jax.ShapeDtypeStruct((16, 4), "float32"), 1),
        (np.zeros((16, 4)), 1),
        *(
            (jax.ShapeDtypeStruct((16, 4), "float32", sharding=NamedSharding(MESH, spec)), count)
            for spec, count in (
                (PartitionSpec("data"), 4),
                (PartitionSpec(("data", "model")), 8),
                (PartitionSpec(None, "data"), 1),
            )
        ),
    ],
)
def test_shapes_tell_as_arrays_do(array, shards):
    assert example_shards([array], {0: 0}) == shards
