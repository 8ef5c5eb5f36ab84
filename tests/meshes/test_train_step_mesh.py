"""Train steps on eight devices: the run of one device, each step within its rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meshes.test_meshes import FLAGS, TOLERANCE
from tests.meshes.train_step_worker import STEPS, WAYS


@pytest.fixture(scope="module")
def reports():
    done = subprocess.run(
        [sys.executable, "-m", "tests.meshes.train_step_worker"],
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {report["way"]: report for report in lines}


@pytest.mark.parametrize("way", WAYS)
def test_the_run_is_that_of_one_device(reports, way):
    report = reports[way]
    assert report["devices"] == 8
    assert report["donated"]
    assert report["norms"] < STEPS * TOLERANCE
    assert report["params"] < STEPS * TOLERANCE
