"""Counts of bundles, digests of programs, and what exactness is held against."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent.parent


MATMUL = """
from tools.bench.bundles.program_time import compiled_with_bundles, dump_bundles
folder = dump_bundles()
import jax, jax.numpy as jnp
from hlo_surgery.targets.target import find_target, without_tpu
without_tpu()
target = find_target("tpu:v5e")
sharding = jax.sharding.SingleDeviceSharding(target.devices[0])
x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=sharding)
looped = jax.jit(lambda x, y: jax.lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c @ x), y)).lower(x, x)
_, found = compiled_with_bundles(looped.compile, folder, target)
print(found.cycles, found.bytes, sum(found.without_bundles.values()))
"""


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
def test_a_matmul_takes_what_the_matrix_units_take():
    """2 x 1024^3 FLOPs take four units of 128 x 128 at least 16384 cycles, and each of three rounds
    little more.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "JAX_PLATFORMS": "cpu",
    }
    ran = subprocess.run(
        [sys.executable, "-c", MATMUL], capture_output=True, text=True, env=environment, check=True
    )
    cycles, _, missing = map(float, ran.stdout.split())
    assert 3 * 16384 < cycles < 1.3 * 3 * 16384
    assert missing == 0


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield
