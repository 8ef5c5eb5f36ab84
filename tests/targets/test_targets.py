"""Targets by name, what cannot be had, and the costs of modules compiled for CPU."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.optimizers import dp_sgd, micro_adam
from hlo_surgery.targets import target as targets
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.target import compile_for, find_target, without_tpu

CALLBACK = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {has_side_effect = true}
    : (tensor<3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}"""


def module_of(function, *arguments):
    return hs.modules.load(jax.jit(function).lower(*arguments).as_text())


def square(size=64):
    return module_of(lambda x: x @ x, jax.ShapeDtypeStruct((size, size), jnp.float32))


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
        "tpu:GENERATION:SIZES with "
        "v3:2x2, v4:2x2x2, v5e:2x2, v5p:2x2x2, v6e:2x2, or gpu:NAME:NODESxHOSTSxDEVICES with "
        "a100:1x1x8, h100:1x1x8, h200:1x1x8, b200:1x1x8"
    )


@pytest.mark.parametrize("sizes", ["2", "2x2x1", "0x1", "1x0"])
def test_topologies_of_another_form(sizes):
    """Some of these end the whole process in libtpu."""
    assert (
        refused(f"tpu:v5e:{sizes}") == f"a topology of v5e has 2 sizes above zero, and not {sizes}"
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


def test_libtpu_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = "tpu:v5e:2x4 needs libtpu, which is not installed: pip install '.[tpu]'"
    assert refused("tpu:v5e:2x4") == expected


def test_the_plugin_for_cuda_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = "gpu:h200 needs JAX's plugin for CUDA, which is not installed: pip install '.[gpu]'"
    assert refused("gpu:h200") == expected


OUT_OF_MEMORY = {
    "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (59.60G) "
    "exceeds available HBM (15.75G). HLO module: jit_f.\nSee more": "out of memory: HLO "
    "temporaries need 59.60 GiB, "
    "and there are 15.75 GiB of HBM",
    "Out of memory allocating 3 bytes.\nmore": "Out of memory allocating 3 bytes.",
}


@pytest.mark.parametrize("said", OUT_OF_MEMORY)
def test_memory_that_does_not_suffice(said, monkeypatch):
    def fail(work):
        if work.__name__ == "<lambda>" and work.__module__ == targets.__name__:
            raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {said}")
        return work()

    monkeypatch.setattr(targets, "in_clean_config", fail)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        compile_for(square(), "cpu")
    assert str(caught.value) == f"XLA cannot compile this module for cpu: {OUT_OF_MEMORY[said]}"


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


needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu")
without_tpu()

WEIGHTS, EXAMPLES = (16, 8), (32, 16)
STATISTICS = {
    "norms": hs.norms(),
    "squares": hs.second_moment(),
    "clipped": hs.clipped_mean(0.1),
}


def loss(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, -1))


def struct(shape, sharding=None):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def gradient(**planning):
    return hs.grad(loss, statistics=STATISTICS, **planning)


@pytest.fixture(scope="module")
def mesh():
    """Four chips of a TPU that is not here."""
    return Mesh(np.array(find_target("tpu:v5e:2x2").devices), ("data",))


def sharded(mesh):
    everywhere, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return struct(WEIGHTS, everywhere), struct(EXAMPLES, rows)


@needs_libtpu
@pytest.mark.parametrize("planning", [{}, {"target": "tpu:v5e"}])
def test_it_is_compiled_for_the_devices_of_its_arguments(mesh, planning):
    compiled = jax.jit(gradient(**planning)).lower(*sharded(mesh)).compile()
    assert "all-reduce" in compiled.as_text()


@needs_libtpu
@pytest.mark.parametrize("optimizer", [micro_adam(1e-3), dp_sgd(0.1, 1.0, 1.0, seed=0)])
def test_a_train_step_is_compiled(mesh, optimizer):
    w, x = sharded(mesh)
    step = hs.train_step(loss, optimizer, statistics={"norms": hs.norms()})
    state = jax.eval_shape(optimizer.init, w)
    placed = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), state)
    assert "all-reduce" in step.lower(w, placed, x).compile().as_text()


def test_an_export_returns_the_same():
    f = gradient()
    w = jnp.linspace(-1.0, 1.0, 128).reshape(WEIGHTS)
    x = jnp.sin(jnp.arange(512.0)).reshape(EXAMPLES)
    exported = export.export(jax.jit(f))(w, x)
    again = export.deserialize(exported.serialize()).call(w, x)
    jax.tree.map(np.testing.assert_array_equal, again, jax.jit(f)(w, x))


def test_what_jax_compiled_already_has_a_cost():
    compiled = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile()
    assert cost_of(compiled, "cpu") == cost_of(compiled, find_target("cpu"))
    assert cost_of(compiled, "cpu").flops == 2 * 64**3
