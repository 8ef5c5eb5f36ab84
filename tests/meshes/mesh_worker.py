"""Runs every case on eight devices, virtual ones, which JAX counts once: so a program of its own.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.meshes.mesh_worker

prints a line of JSON for each: how far its numbers are off.
"""

import json
import traceback
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
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


def stepped(params, gradient, squares):
    """A step along the gradient, scaled by the root of the second moment."""
    return jax.tree.map(
        lambda p, g, s: p - 0.1 * g / (jnp.sqrt(s) + 0.01), params, gradient, squares
    )


def donated(case, model):
    function = rewritten(case, model.loss)

    def step(params, *batch):
        gradient, found = function(params, *batch)
        return stepped(params, gradient, found["second_moment"])

    params, *batch = ROW.placed(model)
    with jax.set_mesh(ROW.mesh):
        made = jax.jit(step, donate_argnums=0)(params, *batch)
    assert all(x.is_deleted() for x in params.values())
    return made


def scan_over_steps(case, model):
    function = rewritten(case, model.loss)

    def step(params, _):
        gradient, found = function(params, *model.batch)
        return stepped(params, gradient, found["second_moment"]), None

    with jax.set_mesh(ROW.mesh):
        params, *batch = ROW.placed(model)
        model = replace(model, batch=tuple(batch))
        return jax.jit(lambda params: lax.scan(step, params, length=STEPS)[0])(params)


def checkpointed(case, model):
    function = rewritten(case, jax.checkpoint(model.loss))
    compiled = ROW.compiled(model, function, case.statistics)
    return compiled(*ROW.placed(model))


STEPS = 3
PROGRAMS = dict.fromkeys(LAYOUTS, laid_out) | {
    "shards found in arrays": found_in_arrays,
    "shards told": told,
    "in shard_map": in_shard_map,
    "parameters donated": donated,
    "scan over train steps": scan_over_steps,
    "checkpoint in the loss": checkpointed,
}
TRAINED = {"parameters donated": 1, "scan over train steps": STEPS}


@cache
def wanted(model, size, steps):
    """The gradient and all statistics; or the parameters after some steps."""
    model = sized(model, size)
    for _ in range(steps):
        gradient, found = expected(model)
        model = replace(
            model,
            params=jax.tree.map(
                np.float32, stepped(model.params, gradient, found["second_moment"])
            ),
        )
    return model.params if steps else expected(model)


def sized(model, size):
    return MODELS[model].of_size(size) if size else MODELS[model]


def distance(got, want):
    """The greatest difference in any array, in units of the array's greatest entry."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in pairs)


def report(case):
    want = wanted(case.model, case.size, TRAINED.get(case.how, 0))
    if case.how not in TRAINED:
        want = (want[0], {name: want[1][name] for name in case.statistics})
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
