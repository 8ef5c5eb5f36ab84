"""Functions with statistics, lowered for devices that are not here, exported, and compiled."""

import hashlib
import importlib.util
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.optimizers import dp_sgd, micro_adam
from hlo_surgery.targets.target import find_target, without_tpu

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


TEXT = """
import hashlib, jax
from tests.targets.test_ahead_of_time import EXAMPLES, WEIGHTS, gradient, struct
text = jax.jit(gradient()).lower(struct(WEIGHTS), struct(EXAMPLES)).as_text()
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_every_process_lowers_to_the_same_text():
    """By which JAX's compilation cache on disk finds what another process has compiled."""
    text = jax.jit(gradient()).lower(struct(WEIGHTS), struct(EXAMPLES)).as_text()
    environment = {**os.environ, "PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-c", TEXT], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()
