"""GPUs that are not here: complete descriptions, and compiling ahead of time, which needs JAX's
plugin for CUDA but no GPU.
"""

import importlib.util
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.requests.options import ROOFLINES, roofline
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.gpus import GPUS, PLUGINS, description
from hlo_surgery.targets.target import compile_for, find_target
from tests.cli.test_cli import MLP
from tests.cli.test_cli_costs import answered, cells
from tests.targets.test_live_memory import mlp, struct

compiles = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, PLUGINS)), reason="needs JAX's plugin for CUDA"
)
# Of the published descriptions: what the compiler divides by, or compiles for.
NEEDED = (
    *("core_count", "fpus_per_core", "threads_per_warp", "memory_bandwidth", "l2_cache_size"),
    *("shared_memory_per_block_optin", "registers_per_core_limit", "cuda_compute_capability"),
)
# Multiply-adds a clock in the matrix units of each core, as XLA describes them: of TF32 and of
# bfloat16.
PER_CORE = {"a100": (512, 1024), "h100": (1024, 2048), "h200": (1024, 2048), "b200": (2048, 4096)}


def module_of(function, *arguments):
    return hs.load(jax.jit(function).lower(*arguments).as_text())


@pytest.mark.parametrize("name", GPUS)
def test_descriptions_are_complete(name):
    text = description(GPUS[name])
    assert [field for field in NEEDED if f"{field}" not in text] == []
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("name", GPUS)
def test_peaks_are_those_of_units_and_clock(name):
    """Matrix units of Hopper and Blackwell are clocked some 8 % below the cores."""
    gpu, device = GPUS[name], roofline(f"gpu:{name}")
    tf32, bf16 = (gpu.cores * each * gpu.clock * 1e9 * 2 for each in PER_CORE[name])
    scalar = gpu.cores * gpu.units_per_core * gpu.clock * 1e9 * 2
    assert scalar == pytest.approx(device.vector_flops, rel=0.03)
    assert device.bandwidth == pytest.approx(gpu.bandwidth, rel=0.01)
    assert 0.9 < device.flops / tf32 <= 1.01
    assert 0.9 < device.narrow_flops / bf16 <= 1.01


def test_rooflines_are_found_by_target():
    assert roofline("gpu:h200:2x1x8").name == "gpu:h200"
    assert {f"gpu:{name}" for name in GPUS} < set(ROOFLINES)


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
def test_full_precision_runs_on_cuda_cores():
    x = struct(4096, 4096)
    matmul = module_of(lambda x, y: jnp.matmul(x, y, precision="highest"), x, x)
    assert cost(matmul, "gpu:h200").roofline_seconds == pytest.approx(2 * 4096**3 / 66.9e12)


@compiles
def test_convolutions_of_cudnn_are_counted():
    """The layer and its weights' gradient: 32 images of 54 x 54 places by 3 x 3 x 64 x 64."""

    def loss(w, x):
        y = jax.lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jnp.tanh(y) ** 2)

    module = module_of(jax.grad(loss), struct(3, 3, 64, 64), struct(32, 56, 56, 64))
    assert "__cudnn$conv" in compile_for(module, "gpu:h200").text
    least = 2 * 2 * 32 * 54 * 54 * 9 * 64 * 64
    assert least <= cost(module, "gpu:h200").flops <= 1.02 * least


@compiles
def test_cublas_counts_what_triton_does():
    target = find_target("gpu:h200")
    place = jax.sharding.SingleDeviceSharding(target.devices[0])
    x = jax.ShapeDtypeStruct((2048, 2048), "float32", sharding=place)
    lowered = jax.jit(lambda x, y: x @ y).lower(x, x)
    options = target.compiler_options
    triton = lowered.compile(options)
    cublas = lowered.compile(options | {"xla_gpu_enable_triton_gemm": False})
    assert "__cublas" in cublas.as_text()
    assert "__cublas" not in triton.as_text()
    first, second = cost_of(triton, target), cost_of(cublas, target)
    assert first.flops == second.flops == 2 * 2048**3
    assert first.bytes_accessed == second.bytes_accessed == 3 * 4 * 2048**2


def of_heads(weights, x):
    """Attention whose gradient holds a GEMM for which XLA finds no tiles."""
    split = x.shape[0], x.shape[1], 4, x.shape[2] // 4
    q, k, v = ((x @ w).reshape(split).swapaxes(1, 2) for w in weights)
    return jnp.sum(jax.nn.softmax(q @ k.swapaxes(2, 3)) @ v)


@compiles
def test_what_triton_has_no_tiles_for_is_left_to_cublas(tmp_path):
    module = module_of(jax.grad(of_heads, 1), [struct(64, 64)] * 3, struct(16, 9, 64))
    compiled = compile_for(module, "gpu:h200")
    assert compiled.options["xla_gpu_enable_triton_gemm"] is False
    assert "__cublas" in compiled.text
    path = tmp_path / "heads.mlir"
    path.write_text(module.text())
    assert "XLA finds no tiles" in answered("cost", path, "--target", "gpu:h200").stdout


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


@compiles
def test_projections_copy_no_operands_together(monkeypatch):
    """XLA would contract what shares its signs as one, and copy these operands for it."""

    def loss(p, x):
        for w in p:
            x = jnp.tanh(x @ w)
        return jnp.mean(jnp.sum(x**2, (1, 2)))

    target = find_target("gpu:h200")
    place = jax.sharding.SingleDeviceSharding(target.devices[0])
    weights, x = (
        jax.ShapeDtypeStruct(shape, "float32", sharding=place)
        for shape in [(512, 512), (16, 128, 512)]
    )

    def moved(apart):
        device = replace(ROOFLINES["gpu:h200"], copies_merged=apart)
        monkeypatch.setitem(ROOFLINES, "gpu:h200", device)
        f = hs.grad(loss, statistics=hs.projected(16), target="gpu:h200")
        return cost_of(jax.jit(f).lower([weights] * 3, x).compile(), target).bytes_accessed

    assert moved(apart=True) < moved(apart=False)


STARTED = """
import jax
jax.numpy.ones(3).block_until_ready()
import hlo_surgery as hs
print(len(hs.find_target("gpu:a100:1x1x2").devices))
"""


@compiles
@pytest.mark.parametrize("platforms", ["cpu", None])
def test_jax_may_have_started_before(platforms, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", raising=False)
    if platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
    ran = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True)
    assert ran.stdout == "2\n", ran.stderr


def rows_only(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, 1))


def positions(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, (1, 2)))


# Where examples are rows, XLA fuses their outer products into the sum; where they are matrices,
# tensor cores write each example's gradient.
SITES = {"rows": (rows_only, (512, 512)), "positions": (positions, (16, 256, 512))}
FASTEST = {"rows": ["square", "lift", "loop"], "positions": ["lift", "loop"]}


def predicted_order(kind):
    """Of what a plan may take by itself: kernels are for those who ask."""
    loss, shape = SITES[kind]
    f = hs.grad(loss, statistics=hs.second_moment(), target="gpu:h200")
    (output,) = f.module(struct(512, 2048), struct(*shape)).plan.outputs
    taken = set(output.predicted) - {"fused"}
    return sorted(taken, key=lambda name: output.predicted[name].seconds)


@pytest.mark.parametrize("kind", SITES)
def test_strategies_are_ordered_by_tensor_cores_and_cuda_cores(kind):
    assert predicted_order(kind) == FASTEST[kind]


@compiles
@pytest.mark.parametrize("kind", SITES)
def test_the_order_is_that_of_the_compiled_kernels(kind):
    """By FLOPs and bytes counted in what XLA makes of each, which planning does not see."""
    loss, shape = SITES[kind]
    seconds = {}
    for strategy in FASTEST[kind]:
        how = {"strategy": strategy, "target": "gpu:h200"}
        f = hs.grad(loss, statistics=hs.second_moment(), **how)
        module = f.module(struct(512, 2048), struct(*shape))
        seconds[strategy] = cost(module, "gpu:h200").roofline_seconds
    assert sorted(seconds, key=seconds.get) == predicted_order(kind)


@compiles
def test_outer_products_that_are_summed_take_cuda_cores_and_no_memory():
    """512 examples' gradients of 512 x 2048 would be 2 GB; their squares take two FLOPs an element
    or more, which tensor cores would do in a thirtieth of the time.
    """
    f = hs.grad(rows_only, statistics=hs.second_moment(), strategy="lift", target="gpu:h200")
    found = cost(f.module(struct(512, 2048), struct(512, 512)), "gpu:h200")
    assert found.temporary_bytes < 64e6
    assert found.roofline_seconds > 3 * 512 * 512 * 2048 / 66.9e12


def test_bfloat16_gradients_are_held_in_float32():
    loss, shape = SITES["positions"]
    narrow = struct(512, 2048, dtype="bfloat16"), struct(*shape, dtype="bfloat16")
    wide = struct(512, 2048), struct(*shape)
    f = hs.grad(loss, statistics=hs.second_moment(), target="gpu:h200")
    held = [
        f.module(*each).plan.outputs[0].predicted["lift"].temporaries for each in (narrow, wide)
    ]
    assert held == [16 * 512 * 2048 * 4] * 2
