"""Kernels on four devices, each with its own examples: the numbers of plain attention."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fast_compiles import FAST_COMPILES
from tests.meshes.kernel_worker import WAYS
from tests.meshes.test_meshes import TOLERANCE

FLAGS = f"--xla_force_host_platform_device_count=4 {FAST_COMPILES}"


@pytest.fixture(scope="module")
def report():
    done = subprocess.run(
        [sys.executable, "-m", "tests.meshes.kernel_worker"],
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_are_those_of_plain_attention(report, way):
    assert report[way] <= TOLERANCE
