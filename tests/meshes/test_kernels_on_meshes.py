"""Kernels on four devices, each with its own examples: the numbers of plain attention."""

import pytest

from tests.fast_compiles import FAST_COMPILES
from tests.meshes import worker_runs
from tests.meshes.kernel_worker import WAYS
from tests.meshes.test_meshes import TOLERANCE

FLAGS = f"--xla_force_host_platform_device_count=4 {FAST_COMPILES}"


@pytest.fixture(scope="module")
def report():
    return worker_runs.reports(FLAGS, 300, "tests.meshes.kernel_worker")[-1]


@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_are_those_of_plain_attention(report, way):
    assert report[way] <= TOLERANCE
