"""Targets: the devices that XLA compiles for, here or ahead of time, and a module for one."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import jax
from jax.experimental import topologies

from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.emit.export import carry, in_clean_config
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import ir
from hlo_surgery.passes.normalise.out_of_scope import (
    CONSTRAINT,
    MANUAL,
    mesh_size,
    refuse_effects,
)
from hlo_surgery.requests.options import row_of
from hlo_surgery.targets.gpus import (
    BY_CUBLAS,
    GPUS,
    NO_TILES,
    WITHOUT_AUTOTUNING,
    gpu_devices,
)

LOCAL = ("cpu", "gpu", "tpu")
# Generations of TPU, and how many sizes a topology of theirs has.
TOPOLOGIES = {"v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
NAMES = (
    "cpu, gpu, tpu, or ahead of time tpu:GENERATION:SIZES with "
    + ", ".join(f"{name}:{'x'.join('2' * sizes)}" for name, sizes in TOPOLOGIES.items())
    + ", or gpu:NAME:NODESxHOSTSxDEVICES with "
    + ", ".join(f"{name}:1x1x8" for name in GPUS)
)
# What spares libtpu the search for a TPU and its metadata server, of which it complains on stderr
# where there is none.
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
DONATED = ("tf.aliasing_output", "jax.buffer_donor")


@dataclass(frozen=True)
class Target:
    """The devices that a name stands for. Where each computes for itself, one is compiled for."""

    name: str
    devices: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The device's row among the rooflines."""
        return row_of(self.devices[0])

    @property
    def devices_per_chip(self) -> int:
        """How many devices share a chip's memory: two on older TPUs."""
        if self.devices[0].platform != "tpu":
            return 1
        return len(self.devices) // len({tuple(device.coords) for device in self.devices})

    @property
    def compiler_options(self) -> dict[str, Any]:
        """What XLA is told beside the program: for a GPU that is not here, not to time anything."""
        return dict(WITHOUT_AUTOTUNING) if self.name.startswith("gpu:") else {}


@dataclass(frozen=True)
class Compiled:
    """A module compiled for a target; `options` is what XLA was told beside the program."""

    target: Target
    executable: jax.stages.Compiled
    options: dict[str, Any]

    @cached_property
    def text(self) -> str:
        """The optimised HLO, in the order in which it runs."""
        return self.executable.as_text() or ""


def find_target(name: str | None = None) -> Target:
    """A target's devices: "cpu", "gpu", "tpu", or ahead of time "tpu:v5e" (a chip), "tpu:v5e:2x4".

    Of GPUs "gpu:h200" (one), and "gpu:h200:2x1x8", 2 nodes with a host of 8 devices each. One TPU
    is the first of a host's four, since not every libtpu knows a host of one.

    None is JAX's default backend. A mesh over the devices of several chips shards a module, see
    `compile_for`. Raises ValueError where there is no such target, or it cannot be had here.

    >>> find_target("cpu").devices[0].platform
    'cpu'
    """
    name = jax.default_backend() if name is None else name
    if name in LOCAL:
        return Target(name, _local(name))
    found = re.fullmatch(r"(tpu|gpu):(\w+)(?::(\d+(?:x\d+)*))?", name)
    known = {"tpu": TOPOLOGIES, "gpu": dict.fromkeys(GPUS, 3)}
    if found is None or found[2] not in known[found[1]]:
        raise ValueError(f"there is no target {name!r}; there is {NAMES}")
    sizes = _sizes(found[2], found[3], known[found[1]][found[2]])
    if found[1] == "gpu":
        return Target(name, gpu_devices(name, found[2], sizes))
    return Target(name, _chips(name, found[2], sizes))


def _sizes(kind: str, given: str | None, count: int) -> list[int]:
    sizes = [int(size) for size in given.split("x")] if given else [1] * count
    if len(sizes) != count or 0 in sizes:
        raise ValueError(f"a topology of {kind} has {count} sizes above zero, and not {given}")
    return sizes


def _chips(name: str, generation: str, sizes: Sequence[int]) -> tuple[Any, ...]:
    if set(sizes) != {1}:
        return _ahead_of_time(name, generation, sizes)
    devices = _ahead_of_time(name, generation, (2, 2, 1)[: len(sizes)])
    return tuple(each for each in devices if each.coords == devices[0].coords)


def _local(name: str) -> tuple[Any, ...]:
    try:
        return tuple(jax.local_devices(backend=name))
    except RuntimeError:
        raise ValueError(
            f"JAX has no {name.upper()} here; to compile for one ahead of time, name its topology, "
            f"such as {'tpu:v5e:1x1' if name == 'tpu' else 'gpu:h200:1x1x1'}"
        ) from None


def _ahead_of_time(name: str, generation: str, sizes: Sequence[int]) -> tuple[Any, ...]:
    if find_spec("libtpu") is None:
        raise ValueError(f"{name} needs libtpu, which is not installed: pip install '.[tpu]'")
    topology = f"{generation}:{'x'.join(map(str, sizes))}"
    try:
        return tuple(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except (RuntimeError, NotImplementedError) as problem:
        raise ValueError(f"libtpu knows no {name}: {_reason(problem)}") from None


def _reason(problem: Exception) -> str:
    return re.sub(r"^[A-Z_]+: ", "", str(problem).splitlines()[0])


def without_tpu() -> None:
    """Tell libtpu, where there is no TPU, not to look for one. To be called before JAX's backends
    start.

    >>> without_tpu()
    """
    if not [*Path("/dev").glob("accel*"), *Path("/dev").glob("vfio/*")]:
        for variable, value in WITHOUT_TPU.items():
            os.environ.setdefault(variable, value)


def compile_for(
    module: Source,
    target: str | Target | None = None,
    in_shardings: Sequence[jax.sharding.Sharding] | None = None,
) -> Compiled:
    """Compile for a target's first device, or over several by `in_shardings`, one an argument.

    These are shardings on meshes of the target's devices: XLA then partitions the module, and its
    own sharding constraints are kept if they are for as many devices. Arguments that the module
    marks as donated are. Where XLA finds no tiles for a GEMM of Triton on a GPU, all GEMMs are
    cuBLAS's, as `options` of the answer then says. Raises ValueError where the target cannot be
    had, or its memory does not suffice; Refusal where the module calls its host back.

    >>> source = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    >>> "ENTRY" in compile_for(source, "cpu").text
    True
    """
    module, target = load(module), target if isinstance(target, Target) else find_target(target)
    refuse_effects(module.code)
    if in_shardings is None:
        alone = jax.sharding.SingleDeviceSharding(target.devices[0])
        in_shardings = [alone] * len(module.arguments)
    if len(in_shardings) != len(module.arguments):
        raise ValueError(
            f"the module takes {len(module.arguments)} arguments; {len(in_shardings)} shardings "
            "are given"
        )
    # Whether constraints, or what each device has to itself, are of these devices.
    placed = not {CONSTRAINT, MANUAL}.isdisjoint(mlir.op_names(module.code))
    counts = {each.num_devices for each in in_shardings}
    exported = carry(
        module.code,
        module.arguments,
        module.outputs,
        _lowering_platform(target.devices[0]),
        on_mesh=placed and mesh_size(module.code) in counts,
    )
    structs = [
        jax.ShapeDtypeStruct(port.shape, port.dtype, sharding=sharding)
        for port, sharding in zip(module.arguments, in_shardings, strict=True)
    ]
    jitted = jax.jit(exported.call, donate_argnums=_donated(module))
    return _compiled(jitted, structs, target)


def _compiled(jitted: Any, structs: Sequence[Any], target: Target, **options: Any) -> Compiled:
    told = target.compiler_options | options
    try:
        made = in_clean_config(lambda: jitted.lower(*structs).compile(told))
        return Compiled(target, made, told)
    except jax.errors.JaxRuntimeError as problem:
        if NO_TILES in str(problem) and not options:
            return _compiled(jitted, structs, target, **BY_CUBLAS)
        raise ValueError(
            f"XLA cannot compile this module for {target.name}: {_failure(problem)}"
        ) from None


def _lowering_platform(device: Any) -> str:
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def _donated(module: Module) -> tuple[int, ...]:
    """The arguments in whose memory an output may lie."""
    attributes = mlir.main_function(module.code).attributes
    if "arg_attrs" not in attributes:
        return ()
    each = enumerate(map(ir.DictAttr, cast(Any, attributes["arg_attrs"])))
    return tuple(i for i, marks in each if any(name in marks for name in DONATED))


def _failure(problem: Exception) -> str:
    """What XLA says, where memory does not suffice in short."""
    found = re.search(
        r"required for (.+?) \(([\d.]+)(\w)\) exceeds available HBM \(([\d.]+)(\w)\)", str(problem)
    )
    if found is None:
        return _reason(problem)
    what, needed, unit, there, there_unit = found.groups()
    return (
        f"out of memory: {what} need {needed} {unit}iB, and there are {there} {there_unit}iB of HBM"
    )
