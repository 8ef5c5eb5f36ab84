"""Trains on one device and on a mesh of eight, as a program of its own: its devices are virtual.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.meshes.train_step_worker

prints a line of JSON for each way: how far the parameters and the norms are from those of one
device.
"""

import json
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.statistics.statistic_models import draws
from tests.training.training_runs import square_error

STEPS, SIZE = 5, 16
DRAW = draws(0)
PARAMS = {"w": DRAW(6, 4), "b": DRAW(4)}
BATCHES = [(DRAW(SIZE, 6), DRAW(SIZE, 4)) for _ in range(STEPS)]
OPTIMIZER = ho.micro_adam(0.05, eps=1e-3, weight_decay=1e-3)
WAYS = {
    "in set_mesh": {},
    "told the shards": {"shards": 8},
    "told nothing": {},
    "named by the loss": {},
}


def trained(place, placed, loss=square_error, **planning):
    """The last parameters, all norms, and whether every step took its arguments' memory."""
    options = {"batch_argnums": (1, 2), "statistics": {"norms": hs.norms()}}
    step = hs.train_step(loss, OPTIMIZER, **options, **planning)
    params = jax.tree.map(place, PARAMS)
    state, norms, donated = OPTIMIZER.init(params), [], True
    for batch in BATCHES:
        before = jax.tree.leaves((params, state))
        params, state, metrics = step(params, state, *map(placed, batch))
        donated = donated and all(leaf.is_deleted() for leaf in before)
        norms.append(metrics["norms"])
    return params, norms, donated


def distance(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def naming(rows):
    """The loss, with its examples laid out by itself."""
    return lambda params, x, y: square_error(params, lax.with_sharding_constraint(x, rows), y)


def main():
    assert jax.device_count() == 8
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    everywhere, rows = (NamedSharding(mesh, spec) for spec in (P(), P("data")))
    one = trained(jnp.array, jnp.array)
    for way, planning in WAYS.items():
        with jax.set_mesh(mesh) if way == "in set_mesh" else nullcontext():
            if way == "named by the loss":
                # Of arrays that no device has been said for.
                params, norms, donated = trained(jnp.array, jnp.array, naming(rows), **planning)
            else:
                params, norms, donated = trained(
                    lambda x: jax.device_put(x, everywhere),
                    lambda x: jax.device_put(x, rows),
                    **planning,
                )
        report = {
            "params": distance(params, one[0]),
            "norms": distance(norms, one[1]),
            "donated": donated,
        }
        devices = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(params)}
        print(json.dumps({"way": way, "devices": devices.pop()} | report), flush=True)


if __name__ == "__main__":
    main()
