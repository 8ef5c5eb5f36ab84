"""GPUs that are not here: descriptions, and compiling ahead of time, by JAX's plugin for CUDA."""

import importlib.util

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hlo_surgery.targets.costs import cost
from hlo_surgery.targets.gpus import GPUS, PLUGINS, description
from hlo_surgery.targets.target import find_target
from tests.cli.test_cli import MLP
from tests.cli.test_cli_costs import answered, cells
from tests.targets.test_estimated_time import mlp, struct
from tests.targets.test_targets import module_of

compiles = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, PLUGINS)), reason="needs JAX's plugin for CUDA"
)
# Of the published descriptions: what the compiler divides by, or compiles for.
NEEDED = (
    *("core_count", "fpus_per_core", "threads_per_warp", "memory_bandwidth", "l2_cache_size"),
    *("shared_memory_per_block_optin", "registers_per_core_limit", "cuda_compute_capability"),
)


@pytest.mark.parametrize("name", GPUS)
def test_descriptions_are_complete(name):
    text = description(GPUS[name])
    assert [field for field in NEEDED if f"{field}" not in text] == []
    assert text.count("{") == text.count("}")


@compiles
@pytest.mark.parametrize("name", GPUS)
def test_topologies_have_devices(name):
    assert len(find_target(f"gpu:{name}").devices) == 1
    assert len(find_target(f"gpu:{name}:2x2x4").devices) == 16
    assert find_target(f"gpu:{name}").kind == f"gpu:{name}"


@compiles
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_matmul_takes_its_flops_at_the_rate_of_its_type(dtype):
    x = struct(4096, 4096, dtype=dtype)
    found = cost(module_of(lambda x, y: x @ y, x, x), "gpu:h200")
    assert found.flops == 2 * 4096**3
    rate = {"float32": 494.7e12, "bfloat16": 989.4e12}[dtype]
    assert found.roofline_seconds == pytest.approx(2 * 4096**3 / rate)


@compiles
def test_data_parallel_gradients_are_reduced_together():
    target = find_target("gpu:h200:1x1x8")
    mesh = Mesh(np.array(target.devices), ("data",))
    weights, x = [struct(256, 256)] * 3, struct(64, 256)
    kept, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    found = cost(module_of(jax.grad(mlp), weights, x), target, [*[kept] * 3, split])
    assert found.collectives == {"all-reduce": 1}


@compiles
def test_the_commands_say_what_is_not_known():
    said = answered("cost", MLP, "--target", "gpu:h200", "--against", MLP).stdout
    assert "xla_gpu_autotune_level=0" in said
    assert "XLA estimates no time for gpu:h200" in said
    rows = cells(said)
    assert rows["kernels launched"][-1] == "1.000 x"
    assert "peak memory" in answered("compile", MLP, "--target", "gpu:b200").stdout
