"""Dump small gradient modules as this jax writes them: text, bytecode, portable artifact, export.

    python -m tools.dumps.make_dumps [NAME ...]

fixtures/dumps/NAME_jax_VERSION/ then holds
    module.EXT     mlir (text), mlirbc (bytecode), vhlo (StableHLO portable artifact) or jax_export
    inputs.npz     arg0, arg1, ...: the module's arguments, the same for every version
    reference.npz  grad0, ...: jax.grad of the loss
                   second_moment0, ...: mean over examples of g_b**2, by jax.vmap
    meta.json      who made it, what is special about it, its arguments with their example axes,
                   the verdict

The dumps in the repository were made by this script with jax 0.4.30 (Python 3.10), 0.4.38 and 0.7.2
(Python 3.11), each in an environment of its own with `jax[cpu]==VERSION absl-py flatbuffers` and,
before 0.7, `numpy<2`; and with jax 0.10.2. Of those that repeat another version's, not all are
kept. There is no Shardy before jax 0.4.38.
"""

import argparse
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from tools.dumps import forms, shardings
from tools.models.dumped import EXAMPLES, MODELS, DumpModel

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "dumps"
FOLDERS_OF_MACHINE = r"^.*/(?=site-packages/)|^.*/tools/"
SHARDY = "jax_use_shardy_partitioner"
Arrays = list[Any]


@dataclass(frozen=True)
class Dump:
    """The model, how it is lowered and written, and the verdict. `shardy`: the partitioner, where
    it matters.

    What is written for each device is separable too in Shardy's form, in which nothing about the
    devices is lost.
    """

    model: str
    make: Callable[[DumpModel, forms.Arguments], forms.File]
    special: str
    verdict: str = "separable"
    shardy: bool | None = None
    platform_index: bool = False


INDEX = "branches on the platform index, the first argument"
LOSS, GRADIENT = shardings.as_text_of_mapped_loss, shardings.as_text_of_mapped_gradient
OTHERS = "written for each device"
DUMPS = {
    "mlp_text": Dump("mlp", forms.as_text, "text with source locations"),
    "mlp_bytecode": Dump("mlp", forms.as_bytecode, "MLIR bytecode"),
    "attention_bare": Dump("attention", forms.as_bare_text, "text without source locations"),
    "lstm_export": Dump("lstm", forms.as_export, "a loop, in a jax.export artifact"),
    "lstm_bare": Dump("lstm", forms.as_bare_text, "a loop, in text without source locations"),
    "convolution_portable": Dump(
        "convolution", forms.as_portable_artifact, "StableHLO portable artifact"
    ),
    "mlp_cpu_tpu": Dump(
        "mlp", forms.as_export_for_tpu, "an export for two platforms", platform_index=True
    ),
    "by_platform_cpu_tpu": Dump("by_platform", forms.as_export_for_tpu, INDEX, platform_index=True),
    "by_platform_cpu_cuda": Dump(
        "by_platform", forms.as_export_for_cuda, INDEX, platform_index=True
    ),
    "donated": Dump("mlp", forms.as_donating_text, "donated parameters: tf.aliasing_output"),
    "sharded_gspmd": Dump(
        "mlp", shardings.as_sharded_text, "@Sharding, mhlo.sharding", shardy=False
    ),
    "sharded_shardy": Dump(
        "mlp", shardings.as_sharded_text, "sdy.mesh, sdy.sharding_constraint", shardy=True
    ),
    "sharded_export": Dump("mlp", shardings.as_sharded_export, "an export for four devices"),
    "mapped_loss_gspmd": Dump(
        "mlp", LOSS, "SPMDFullToShardShape, all_reduce", OTHERS, shardy=False
    ),
    "mapped_loss_shardy": Dump(
        "mlp", LOSS, "sdy.manual_computation, all_reduce", OTHERS, shardy=True
    ),
    "mapped_gradient_gspmd": Dump(
        "mlp", GRADIENT, "gradients averaged by all_reduce", OTHERS, shardy=False
    ),
    "mapped_gradient_shardy": Dump(
        "mlp", GRADIENT, "gradients averaged by all_reduce", OTHERS, shardy=True
    ),
    "mapped_export": Dump(
        "mlp", shardings.as_export_of_mapped_gradient, "an export of shard_map", OTHERS
    ),
    "symbolic_batch": Dump(
        "mlp", forms.as_symbolic_export, "the batch size is a symbol", "no static shape"
    ),
    "printing": Dump("printing", forms.as_text, "jax.debug.print", "side effect"),
    "printing_in_order": Dump(
        "printing_in_order", forms.as_text, "ordered jax.debug.print: a token", "side effect"
    ),
    "calling_back": Dump("calling_back", forms.as_bare_text, "jax.pure_callback", "side effect"),
}


def draw(model: DumpModel, seed: int) -> tuple[Arrays, Arrays]:
    """Parameters and inputs, the same for every version."""
    rng = np.random.default_rng(seed)
    parameters = [
        (rng.standard_normal(w.shape) / np.sqrt(w.shape[0])).astype(np.float32)
        for w in model.parameters
    ]
    inputs = [
        rng.standard_normal(spec.shape).astype(np.float32)
        if spec.below is None
        else rng.integers(0, spec.below, spec.shape, np.int32)
        for spec in model.inputs
    ]
    return parameters, inputs


def references(model: DumpModel, parameters: Arrays, inputs: Arrays) -> dict[str, Any]:
    """The gradients, and the mean squares of the examples' own."""

    def of_one(*example: Any) -> Any:
        return forms.gradient(model)(parameters, *(x[None] for x in example))

    gradients = forms.gradient(model)(parameters, *inputs)
    found = {f"grad{i}": np.asarray(g) for i, g in enumerate(gradients)}
    moments = {
        f"second_moment{i}": np.mean(np.asarray(g) ** 2, 0)
        for i, g in enumerate(jax.vmap(of_one)(*inputs))
    }
    return found | moments


def verdict(dump: Dump, data: bytes) -> str:
    """The verdict on a dump as this version of jax has written it."""
    return "separable" if dump.verdict == OTHERS and b"manual_computation" in data else dump.verdict


def described(dump: Dump, data: bytes, arrays: Arrays, axes: list[int | None]) -> str:
    arguments = [
        {"shape": list(np.shape(a)), "dtype": str(np.asarray(a).dtype), "example_axis": axis}
        for a, axis in zip(arrays, axes, strict=True)
    ]
    made = {"maker": "jax", "jax": jax.__version__, "model": dump.model, "special": dump.special}
    meta = {**made, "verdict": verdict(dump, data), "batch_size": EXAMPLES, "arguments": arguments}
    return (
        "{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in meta.items())
        + "\n}\n"
    )


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
    jax.clear_caches()  # a function traced before would keep the source lines of its first caller
    extension, data = dump.make(model, (parameters, *inputs))
    index = [np.int32(0)] if dump.platform_index else []
    arrays, axes = (
        [*index, *parameters, *inputs],
        [None] * (len(index) + len(parameters)) + [0] * len(inputs),
    )
    folder = FOLDER / f"{name}_jax_{jax.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"module.{extension}").write_bytes(data)
    (folder / "meta.json").write_text(described(dump, data, arrays, axes))
    save(folder / "inputs.npz", {f"arg{i}": a for i, a in enumerate(arrays)})
    if dump.verdict in ("separable", OTHERS):
        save(folder / "reference.npz", references(model, parameters, inputs))
    return f"{len(data) / 1000:6.1f} kB"


def save(path: Path, arrays: dict[str, Any]) -> None:
    np.savez_compressed(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="dumps to make; all without")
    jax.config.update("jax_hlo_source_file_canonicalization_regex", FOLDERS_OF_MACHINE)
    for name in parser.parse_args().names or list(DUMPS):
        print(f"{name:28} {make(name, DUMPS[name])}")


if __name__ == "__main__":
    main()
