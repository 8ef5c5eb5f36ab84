"""Kronecker factors on four devices, of sharded examples and parameters: those of one device."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import hlo_surgery as hs
from tests.statistics.test_kronecker import IDS, SEQUENCE, sequence

def factors(p, ids):
    return hs.grad(sequence, statistics=hs.kronecker_factors())(p, ids)[1]

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
last = lambda x: NamedSharding(mesh, P(*[None] * (x.ndim - 1), "model"))
params = {name: jax.device_put(x, last(x)) for name, x in SEQUENCE.items()}
found = jax.jit(factors)(params, jax.device_put(IDS, NamedSharding(mesh, P("data"))))
for own, one in zip(*map(jax.tree.leaves, (found, factors(SEQUENCE, IDS))), strict=True):
    np.testing.assert_allclose(own, one, rtol=1e-5, atol=1e-6 * np.abs(one).max())
print("the same")
"""


@pytest.mark.slow
def test_the_factors_are_those_of_one_device(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    top = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=top, capture_output=True, text=True, check=False
    )
    assert done.stdout == "the same\n", done.stderr
