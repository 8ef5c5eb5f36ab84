"""Dump small gradient modules as this jax writes them, in every form: text, bytecode, portable artifact, export.

    python tools/make_dumps.py [NAME ...]

fixtures/dumps/NAME_jax_VERSION/ then holds
    module.EXT     mlir (text), mlirbc (bytecode), vhlo (StableHLO portable artifact) or jax_export
    inputs.npz     arg0, arg1, ...: the module's arguments, the same for every version
    reference.npz  grad0, ...: jax.grad of the loss; second_moment0, ...: mean over examples of g_b**2, by jax.vmap
    meta.json      who made it, what is special about it, its arguments with their example axes, the verdict

The dumps in the repository were made by this script with jax 0.4.30 (Python 3.10), 0.4.38 and 0.7.2 (Python 3.11),
each in an environment of its own with `jax[cpu]==VERSION` and, before 0.7, `numpy<2`; and with jax 0.10.2.
A version makes those dumps that it can, and says which it cannot: there is no GSPMD without the partitioner's
switch, and no Shardy before jax 0.4.38.
"""

import argparse
import io
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from dump_models import EXAMPLES, MODELS, DumpModel
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "dumps"
FOLDERS_OF_MACHINE = r"^.*/(?=site-packages/)|^.*/tools/"
SHARDY = "jax_use_shardy_partitioner"


@dataclass(frozen=True)
class Dump:
    """One dump: the model, how it is lowered and written, and what the rewriting makes of it."""

    model: str
    make: Callable
    special: str
    verdict: str = "separable"
    shardy: bool | None = None
    platform_index: bool = False


def gradient(model: DumpModel):
    return jax.grad(model.loss)


def lowered(model, arguments, **options):
    return jax.jit(gradient(model), keep_unused=True, **options).lower(*arguments)


def text(stage, debug: bool = True) -> tuple[str, bytes]:
    asm = stage.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=debug)
    return "mlir", asm.encode()


def as_text(model, arguments):
    return text(lowered(model, arguments))


def as_bare_text(model, arguments):
    return text(lowered(model, arguments), debug=False)


def as_bytecode(model, arguments):
    buffer = io.BytesIO()
    lowered(model, arguments).compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return "mlirbc", buffer.getvalue()


def exported(model, arguments, platforms=("cpu",)):
    return export.export(jax.jit(gradient(model), keep_unused=True), platforms=platforms)(*arguments)


def as_export(model, arguments, platforms=("cpu",)):
    return "jax_export", bytes(exported(model, arguments, platforms).serialize())


def as_portable_artifact(model, arguments):
    return "vhlo", bytes(exported(model, arguments).mlir_module_serialized)


def with_symbolic_batch(model, arguments):
    parameters, *inputs = arguments
    scope = export.SymbolicScope()
    shapes = [
        jax.ShapeDtypeStruct(export.symbolic_shape(f"b, {x.shape[1]}", scope=scope), x.dtype) for x in inputs
    ]
    return "jax_export", bytes(export.export(jax.jit(gradient(model)))(parameters, *shapes).serialize())


def donating(model, arguments):
    return text(lowered(model, arguments, donate_argnums=(0,)))


def mesh(*names: str) -> Mesh:
    devices = np.array(jax.devices()[: 2 ** len(names)])
    return Mesh(devices.reshape([2] * len(names)), names)


def sharded(model, arguments):
    """Data and model parallel: sharded arguments, and a constraint within."""
    here = mesh("data", "model")

    def loss(p, x, y):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(here, PartitionSpec("data", None)))
        return model.loss(p, x, y)

    rows = NamedSharding(here, PartitionSpec("data"))
    columns = [NamedSharding(here, PartitionSpec(*spec)) for spec in ((None, "model"), ("model",), ("model", None))]
    jitted = jax.jit(jax.grad(loss), in_shardings=(columns, rows, rows), out_shardings=columns, keep_unused=True)
    return text(jitted.lower(*arguments))


def mapped(function, here, in_specs, out_specs):
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=here, in_specs=in_specs, out_specs=out_specs)
    from jax.experimental.shard_map import shard_map

    return shard_map(function, here, in_specs=in_specs, out_specs=out_specs)


def shard_mapped(model, arguments):
    """Data parallel by shard_map: the loss of each device's examples, averaged over the devices."""
    rows = PartitionSpec("data")

    def loss(*arguments):
        return jax.lax.pmean(model.loss(*arguments), "data")

    whole = mapped(loss, mesh("data"), (PartitionSpec(), rows, rows), PartitionSpec())
    return text(jax.jit(jax.grad(whole), keep_unused=True).lower(*arguments))


def shard_mapped_gradients(model, arguments):
    """Data parallel by shard_map: the gradient of each device's examples, averaged over the devices."""
    rows = PartitionSpec("data")
    here = mesh("data")
    local = jax.grad(model.loss)

    def averaged(p, *inputs):
        if hasattr(jax.lax, "pvary"):
            p = jax.lax.pvary(p, ("data",))
        return jax.lax.pmean(local(p, *inputs), "data")

    whole = mapped(averaged, here, (PartitionSpec(), rows, rows), PartitionSpec())
    return text(jax.jit(whole, keep_unused=True).lower(*arguments))


CPU_TPU, CPU_CUDA = ("cpu", "tpu"), ("cpu", "cuda")
DUMPS = {
    "mlp_text": Dump("mlp", as_text, "text with source locations"),
    "mlp_bytecode": Dump("mlp", as_bytecode, "MLIR bytecode"),
    "attention_bare": Dump("attention", as_bare_text, "text without source locations"),
    "attention_bytecode": Dump("attention", as_bytecode, "MLIR bytecode"),
    "lstm_export": Dump("lstm", as_export, "jax.export for one platform"),
    "lstm_bare": Dump("lstm", as_bare_text, "a loop, in text without source locations"),
    "convolution_portable": Dump("convolution", as_portable_artifact, "StableHLO portable artifact"),
    "mlp_cpu_tpu": Dump(
        "mlp", partial(as_export, platforms=CPU_TPU), "jax.export for two platforms: a first argument _platform_index",
        platform_index=True,
    ),
    "by_platform_cpu_tpu": Dump(
        "by_platform", partial(as_export, platforms=CPU_TPU), "branches on the platform index", platform_index=True
    ),
    "by_platform_cpu_cuda": Dump(
        "by_platform", partial(as_export, platforms=CPU_CUDA), "branches on the platform index", platform_index=True
    ),
    "sharded_gspmd": Dump("mlp", sharded, "GSPMD shardings: @Sharding, mhlo.sharding", shardy=False),
    "sharded_shardy": Dump("mlp", sharded, "Shardy: sdy.mesh, sdy.sharding, sdy.sharding_constraint", shardy=True),
    "shard_map_gspmd": Dump("mlp", shard_mapped, "shard_map: SPMDFullToShardShape, all_reduce", shardy=False),
    "shard_map_shardy": Dump("mlp", shard_mapped, "shard_map: sdy.manual_computation, all_reduce", shardy=True),
    "shard_map_gradients_gspmd": Dump("mlp", shard_mapped_gradients, "gradients averaged by all_reduce", shardy=False),
    "shard_map_gradients_shardy": Dump("mlp", shard_mapped_gradients, "gradients averaged by all_reduce", shardy=True),
    "donated": Dump("mlp", donating, "donated parameters: tf.aliasing_output"),
    "symbolic_batch": Dump("mlp", with_symbolic_batch, "a symbolic batch size", "no static shape"),
    "printing": Dump("printing", as_text, "jax.debug.print", "side effect"),
    "printing_in_order": Dump("printing_in_order", as_text, "ordered jax.debug.print: tokens", "side effect"),
    "calling_back": Dump("calling_back", as_bare_text, "jax.pure_callback, no source locations", "side effect"),
}  # fmt: skip


def draw(model: DumpModel, seed: int):
    """Parameters and inputs, the same for every version."""
    rng = np.random.default_rng(seed)
    parameters = [(rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for s in model.parameters]
    inputs = [
        rng.standard_normal(shape).astype(np.float32) if below is None else rng.integers(0, below, shape, np.int32)
        for shape, below in model.inputs
    ]
    return parameters, inputs


def references(model: DumpModel, parameters, inputs):
    """The gradients, and the mean squares of the examples' own."""
    of_one = jax.vmap(lambda *one: gradient(model)(parameters, *(x[None] for x in one)))
    examples = [np.asarray(g) for g in of_one(*inputs)]
    return [np.asarray(g) for g in gradient(model)(parameters, *inputs)], [np.mean(g**2, 0) for g in examples]


def described(dump: Dump, arrays: list, axes: list) -> str:
    meta = {
        "maker": "jax",
        "jax": jax.__version__,
        "model": dump.model,
        "special": dump.special,
        "verdict": dump.verdict,
        "batch_size": EXAMPLES,
        "arguments": [
            {"shape": list(np.shape(a)), "dtype": str(np.asarray(a).dtype), "example_axis": axis}
            for a, axis in zip(arrays, axes)
        ],
    }
    return json.dumps(meta, indent=1) + "\n"


def make(name: str, dump: Dump) -> str:
    """Write fixtures/dumps/NAME_jax_VERSION, or say why this jax cannot make it."""
    known = hasattr(jax.config, SHARDY)
    if dump.shardy and not known:
        return "not made: no Shardy in this jax"
    if dump.shardy is None or not known:
        return write(name, dump)
    default = getattr(jax.config, SHARDY)
    jax.config.update(SHARDY, dump.shardy)
    try:
        return write(name, dump)
    finally:
        jax.config.update(SHARDY, default)


def write(name: str, dump: Dump) -> str:
    model = MODELS[dump.model]
    parameters, inputs = draw(model, zlib.crc32(dump.model.encode()))
    jax.clear_caches()
    extension, data = dump.make(model, (parameters, *inputs))
    index = [np.int32(0)] if dump.platform_index else []
    arrays, axes = [*index, *parameters, *inputs], [None] * (len(index) + len(parameters)) + [0] * len(inputs)
    folder = FOLDER / f"{name}_jax_{jax.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"module.{extension}").write_bytes(data)
    (folder / "meta.json").write_text(described(dump, arrays, axes))
    np.savez(folder / "inputs.npz", **{f"arg{i}": a for i, a in enumerate(arrays)})
    if dump.verdict == "separable":
        gradients, moments = references(model, parameters, inputs)
        families = {"grad": gradients, "second_moment": moments}
        np.savez(folder / "reference.npz", **{f"{k}{i}": a for k, family in families.items() for i, a in enumerate(family)})
    return f"{len(data) / 1000:6.1f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="dumps to make; all without")
    names = parser.parse_args().names or list(DUMPS)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", FOLDERS_OF_MACHINE)
    for name in names:
        print(f"{name:28} {make(name, DUMPS[name])}")


if __name__ == "__main__":
    main()
