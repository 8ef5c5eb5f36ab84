"""One of two processes that share a mesh: python -m tests.meshes.two_process_worker ADDRESS NUMBER

Each has two virtual devices and half of the examples. Prints, as JSON, how far its part of the
numbers is off.
"""

import json
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from tests.meshes.mesh_models import MODELS, STATISTICS, expected

TIMEOUT_S = 60
MODEL, STRATEGIES = MODELS["mlp"], ("auto", "lift", "loop")


def join(address, number):
    """Make this process one of two whose devices belong together."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, number, initialization_timeout=TIMEOUT_S)
    assert (jax.process_count(), jax.local_device_count(), jax.device_count()) == (2, 2, 4)


def run(strategy):
    """The gradient and the statistics on the mesh of both processes, each of which has its half of
    the examples.
    """
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    half = len(MODEL.batch[0]) // 2
    own = slice(jax.process_index() * half, (jax.process_index() + 1) * half)
    data = NamedSharding(mesh, P("data"))
    batch = [jax.make_array_from_process_local_data(data, x[own]) for x in MODEL.batch]
    params = jax.device_put(MODEL.params, NamedSharding(mesh, P()))
    function = hs.grad(MODEL.loss, batch_argnums=(1, 2), statistics=STATISTICS, strategy=strategy)
    return function(params, *batch)


def distance(got, want):
    """The greatest difference in what this process holds, in units of the array's greatest
    entry.
    """
    parts = [(np.asarray(part.data), want[part.index]) for part in got.addressable_shards]
    return max(float(np.abs(part - wanted).max()) for part, wanted in parts) / float(
        np.abs(want).max()
    )


def main(address, number):
    join(address, int(number))
    # Computed on this process's own device, from each example's own gradient.
    gradient, statistics = expected(MODEL)
    want = gradient, {name: statistics[name] for name in STATISTICS}
    found = {
        strategy: max(jax.tree.leaves(jax.tree.map(distance, run(strategy), want)))
        for strategy in STRATEGIES
    }
    print(json.dumps(found), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
