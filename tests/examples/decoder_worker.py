"""Trains the example's decoder over the devices of every process.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.examples.decoder_worker \
        LAYOUT MODEL_AXIS OPTIMIZER [ADDRESS NUMBER]

Prints, as JSON, what is logged at each step. With an address it is one of two processes.
"""

import json
import sys

import jax

from examples.decoder import axes
from examples.decoder.run import Settings
from examples.decoder.train import train
from tests.meshes.processes import join

STEPS = 3


def main(layout, model_axis, optimizer, *place):
    if place:
        join(place[0], int(place[1]))
    settings = Settings(layout=layout, optimizer=optimizer)
    mesh = axes.mesh_over(jax.devices(), int(model_axis))
    steps = list(train(settings, mesh, STEPS))
    _, state, _ = steps[-1]
    split = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))
    report = {"logged": [logged for _, _, logged in steps], "split": split}
    print(json.dumps(report | {"devices": jax.device_count()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
