"""Runs every case on eight devices, virtual ones, which JAX counts once: so a program of its own.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.meshes.mesh_worker

prints a line of JSON for each: how far its numbers are off.
"""

import json
import traceback
from functools import cache

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from tests.meshes.mesh_cases import CASES
from tests.meshes.mesh_layouts import LAYOUTS
from tests.meshes.mesh_models import MODELS, STATISTICS, WHOLE, expected

ROW = LAYOUTS["data parallel"]


def rewritten(case, loss, **planning):
    statistics = {name: (STATISTICS | WHOLE)[name] for name in case.statistics}
    return hs.grad(
        loss, batch_argnums=(1, 2), statistics=statistics, strategy=case.strategy, **planning
    )


def laid_out(case, model):
    layout = LAYOUTS[case.how]
    compiled = layout.compiled(model, rewritten(case, model.loss), case.statistics)
    return compiled(*layout.placed(model))


def found_in_arrays(case, model):
    """Called on sharded arrays, without a mesh in use."""
    function, arguments = rewritten(case, model.loss), ROW.placed(model)
    return function(*arguments)


def told(case, model):
    """`in_shardings` alone say nothing to a function that is being traced."""
    parameters, data = ROW.shardings(model)
    function = jax.jit(rewritten(case, model.loss, shards=8), in_shardings=(parameters, data, data))
    compiled = function.lower(model.params, *model.batch).compile()
    return compiled(*ROW.placed(model))


def in_shard_map(case, model):
    """Each device's own means, averaged over the devices; norms stay with their examples."""
    function = rewritten(case, model.loss)

    def body(*arguments):
        gradient, found = function(*arguments)
        averaged = {k: lax.pmean(x, "data") for k, x in found.items() if k != "norms"}
        return lax.pmean(gradient, "data"), averaged | {"norms": found["norms"]}

    outputs = (P(), {name: P("data") if name == "norms" else P() for name in case.statistics})
    mapped = jax.shard_map(
        body, mesh=ROW.mesh, in_specs=(P(), P("data"), P("data")), out_specs=outputs
    )
    return jax.jit(mapped)(*ROW.placed(model))


def checkpointed(case, model):
    function = rewritten(case, jax.checkpoint(model.loss))
    compiled = ROW.compiled(model, function, case.statistics)
    return compiled(*ROW.placed(model))


PROGRAMS = dict.fromkeys(LAYOUTS, laid_out) | {
    "shards found in arrays": found_in_arrays,
    "shards told": told,
    "in shard_map": in_shard_map,
    "checkpoint in the loss": checkpointed,
}


@cache
def wanted(model, size):
    """The gradient and all statistics."""
    return expected(sized(model, size))


def sized(model, size):
    return MODELS[model].of_size(size) if size else MODELS[model]


def distance(got, want):
    """The greatest difference in any array, in units of the array's greatest entry."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in pairs)


def report(case):
    gradient, found = wanted(case.model, case.size)
    want = gradient, {name: found[name] for name in case.statistics}
    got = PROGRAMS[case.how](case, sized(case.model, case.size))
    return {"distance": distance(got, want)}


def main():
    assert jax.device_count() == 8
    for name, case in CASES.items():
        try:
            found = report(case)
        except Exception:
            found = {"failure": traceback.format_exc()}
        print(json.dumps({"case": name} | found), flush=True)


if __name__ == "__main__":
    main()
