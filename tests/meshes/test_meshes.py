"""Rewritten functions on eight devices: the numbers of one.

This folder alone tests statistics over several devices.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fast_compiles import FAST_COMPILES
from tests.meshes.mesh_cases import CASES

# Code that LLVM has not optimised compiles faster; how a module is partitioned is decided before.
FLAGS = f"--xla_force_host_platform_device_count=8 {FAST_COMPILES}"
# In units of an array's largest entry: some hundred roundings to float32, 2**-24 each, one way.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def worker():
    """What the worker reports of each case, and how it ended."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.meshes.mesh_worker"],
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        report.pop("case"): report for report in reports
    }, f"exit code {done.returncode}: {done.stderr}"


def report_of(worker, name):
    reports, ending = worker
    assert name in reports, ending
    assert "failure" not in reports[name], reports[name]["failure"]
    return reports[name]


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_one_device(worker, name):
    assert report_of(worker, name)["distance"] <= TOLERANCE


def test_the_worker_ends_well(worker):
    assert worker[1].startswith("exit code 0")
