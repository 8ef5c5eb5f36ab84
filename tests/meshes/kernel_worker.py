"""Kernels that each of four devices has to itself, and statistics beside them.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.meshes.kernel_worker

The module is rewritten for a TPU, and run on the CPU with its kernels interpreted. Prints, as JSON,
how far its numbers are from those of plain attention.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.module import load
from tests.dataflow.test_mosaic_kernels import W, X, attended, attention, attentive, on_cpu

STATISTICS = {"n": hs.norms(), "s": hs.second_moment(), "c": hs.clipped_mean(0.1)}
PARAMS = {name: W * scale for name, scale in zip("qkv", (1, 0.5, 0.25), strict=True)}
# A device's part is of as many examples as the kernel is for.
EXAMPLES = jnp.concatenate([X, jnp.cos(X)])


def on_own(q, k, v):
    return attention(False, q, k, v)


WAYS = {
    "auto": (on_own, "auto"),
    "lift": (on_own, "lift"),
    "loop": (on_own, "loop"),
}


def difference(attend, strategy, mesh):
    on_each = jax.shard_map(
        attend, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    planning = {"statistics": STATISTICS, "strategy": strategy}
    f = hs.grad(lambda p, x: attentive(p, x, on_each), target="tpu:v5e", **planning)
    arguments = PARAMS, EXAMPLES
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
    module = load(on_cpu(f.module(*structs).code.operation.get_asm()))
    placed = jax.device_put(arguments, (NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))))
    got = jax.device_get(module.on_mesh(*jax.tree.leaves(placed)))
    plain = hs.grad(lambda p, x: attentive(p, x, jax.vmap(attended)), **planning)
    wanted = jax.device_get(jax.tree.leaves(plain(*arguments)))
    return max(
        float(np.abs(g - w).max() / np.abs(w).max()) for g, w in zip(got, wanted, strict=True)
    )


def main():
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    print(json.dumps({way: difference(*how, mesh) for way, how in WAYS.items()}))


if __name__ == "__main__":
    main()
