"""Targets by name, what cannot be had, and the costs of modules compiled for CPU."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.targets.costs import cost
from hlo_surgery.targets.target import compile_for, find_target, without_tpu

CALLBACK = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {has_side_effect = true}
    : (tensor<3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}"""


def module_of(function, *arguments):
    return hs.modules.load(jax.jit(function).lower(*arguments).as_text())


def refused(name):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        find_target(name)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cuda",
        "gpu:",
        "gpu:v100",
        "gpu:mi300",
        "tpu:h200",
        "TPU",
        "tpu:",
        "tpu:v5",
        "tpu:v2:2x2",
        "tpu:v5e:2x",
        "tpu:v5e:2x2:2",
        "v5e",
    ],
)
def test_unknown_names(name):
    assert refused(name) == (
        f"there is no target {name!r}; there is cpu, gpu, tpu, or ahead of time "
        f"tpu:GENERATION:SIZES with v3:2x2, v4:2x2x2, v5e:2x2, v5p:2x2x2, v6e:2x2, or "
        f"gpu:NAME:NODESxHOSTSxDEVICES with a100:1x1x8, h100:1x1x8, h200:1x1x8, b200:1x1x8"
    )


def test_devices_that_are_not_here(monkeypatch):
    def none(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    assert (
        refused("gpu")
        == "JAX has no GPU here; to compile for one ahead of time, name its topology, such as "
        "gpu:h200:1x1x1"
    )
    assert (
        refused("tpu")
        == "JAX has no TPU here; to compile for one ahead of time, name its topology, such as "
        "tpu:v5e:1x1"
    )


@pytest.mark.parametrize(
    ("name", "needed", "extra"),
    [("tpu:v5e:2x4", "libtpu", "tpu"), ("gpu:h200", "JAX's plugin for CUDA", "gpu")],
)
def test_what_compiles_ahead_of_time_is_missing(name, needed, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = f"{name} needs {needed}, which is not installed: pip install '.[{extra}]'"
    assert refused(name) == said


def test_modules_that_call_their_host_are_refused():
    with pytest.raises(hs.Refusal):
        compile_for(CALLBACK, "cpu")


def test_what_a_matmul_costs():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    found = cost(module_of(lambda x, y: x @ y, x, x), "cpu")
    assert (found.target, found.flops, found.argument_bytes, found.output_bytes) == (
        "cpu",
        2 * 64**3,
        32768,
        16384,
    )
    assert found.bytes_accessed == 3 * 16384
    assert found.peak_bytes == 3 * 16384 + found.temporary_bytes
    assert (found.estimated_cycles, found.estimated_seconds, found.without_estimate) == (
        None,
        None,
        {},
    )
    assert (found.collectives, found.unknown_loops) == ({}, 0)
    assert found.roofline_seconds > 0
    assert max(step.bytes for step in found.staircase) == found.peak_bytes


without_tpu()
