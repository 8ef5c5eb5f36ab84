"""GPUs that are not here: their descriptions for XLA's compiler, and devices of a topology.

The numbers are facts that XLA publishes, in openxla/xla at xla/backends/gpu/target_config/specs:
a100_sxm_80 and h200 as of commit 4336d12, h100_sxm of 0774019, b200 of 300ec95. Only what the
compiler needs is here. mi300 is published as well, but cannot be compiled for: the compiler in
JAX's plugin for CUDA breaks on it, and the plugin for ROCm starts only beside an AMD GPU.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

PLUGINS = {"jax_cuda13_plugin": "xla_cuda13", "jax_cuda12_plugin": "xla_cuda12"}
# Without a GPU nothing can be timed, so that no algorithm of a GEMM is chosen by its time.
WITHOUT_AUTOTUNING = {"xla_gpu_autotune_level": 0}
# What XLA says where it has no tiles for a GEMM of Triton, as for some whose sizes are no powers of
# two; and with what it leaves all to cuBLAS.
NO_TILES = "Couldn't find output tile sizes"
BY_CUBLAS = {"xla_gpu_enable_triton_gemm": False}


@dataclass(frozen=True)
class Gpu:
    """A GPU as XLA describes it: memory in bytes, and bytes a second; a clock in GHz.

    `shared`: bytes of shared memory of a core, and the most that a block can opt in for.
    """

    name: str
    cores: int
    units_per_core: int
    clock: float
    bandwidth: int
    l2: int
    memory: int
    shared: tuple[int, int]
    capability: int
    features: str = "ACCELERATED_FEATURES"


GPUS = {
    "a100": Gpu(
        *("NVIDIA A100-SXM4-80GB", 108, 64, 1.41),
        *(2_039_040_000_000, 41_943_040, 85_100_068_864, (167_936, 166_912), 8, "NONE"),
    ),
    "h100": Gpu(
        *("NVIDIA H100 80GB HBM3", 132, 128, 1.98),
        *(3_352_320_000_000, 52_428_800, 84_942_979_072, (233_472, 232_448), 9),
    ),
    "h200": Gpu(
        *("NVIDIA H200", 132, 128, 1.98),
        *(4_800_000_000_000, 52_428_800, 151_397_597_184, (233_472, 232_448), 9),
    ),
    "b200": Gpu(
        *("NVIDIA B200", 148, 128, 1.965),
        *(7_672_320_000_000, 132_644_864, 191_514_411_008, (233_472, 232_448), 10),
    ),
}


# The versions are what XLA describes Hopper and Blackwell with; without these it takes the oldest
# CUDA's.
DESCRIPTION = """gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared[0]}
  shared_memory_per_block_optin: {gpu.shared[1]}
  threads_per_core_limit: 2048
  core_count: {gpu.cores}
  fpus_per_core: {gpu.units_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory}
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  cuda_compute_capability {{ major: {gpu.capability} feature_extension: {gpu.features} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{gpu.name}"
"""


def description(gpu: Gpu) -> str:
    """A `GpuTargetConfigProto` in text form.

    >>> "core_count: 132" in description(GPUS["h200"])
    True
    """
    return DESCRIPTION.format(gpu=gpu)


def gpu_devices(name: str, gpu: str, sizes: Sequence[int]) -> tuple[Any, ...]:
    """The devices of NODES x HOSTS x DEVICES. Raises ValueError without JAX's plugin for CUDA."""
    plugin = next((p for p in PLUGINS if find_spec(p)), None)
    if plugin is None:
        raise ValueError(
            f"{name} needs JAX's plugin for CUDA, which is not installed: pip install '.[gpu]'"
        )
    _register(PLUGINS[plugin])
    try:
        return _topology(gpu, sizes)
    except NotImplementedError as problem:
        raise ValueError(
            f"{plugin} does not start, so that there is no {name}: {problem}; install the version "
            "of this JAX: pip install '.[gpu]'"
        ) from None


def _topology(gpu: str, sizes: Sequence[int]) -> tuple[Any, ...]:
    found = topologies.get_topology_desc(
        topology_name=gpu,
        platform="cuda",
        target_config=description(GPUS[gpu]),
        topology="x".join(map(str, sizes)),
    )
    return tuple(found.devices)


def _register(plugin: str) -> None:
    """Have JAX load the compiler, with neither GPU nor CUDA's libraries, which are not needed.

    JAX registers a plugin when its backends start, but for one that does not find CUDA. Where they
    had started before, it is registered now.
    """
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    jax.devices()
    try:
        import_module(f"jax_plugins.{plugin}").initialize()
    except jax.errors.JaxRuntimeError as problem:
        if "ALREADY_EXISTS" not in str(problem):
            raise ValueError(f"jax_plugins.{plugin} does not start: {problem}") from None
