"""Train steps on eight devices: the run of one device, each step within its rounding."""

import pytest

from tests.meshes import worker_runs
from tests.meshes.test_meshes import FLAGS, TOLERANCE
from tests.meshes.train_step_worker import STEPS, WAYS


@pytest.fixture(scope="module")
def reports():
    lines = worker_runs.reports(FLAGS, 300, "tests.meshes.train_step_worker")
    return {report["way"]: report for report in lines}


@pytest.mark.parametrize("way", WAYS)
def test_the_run_is_that_of_one_device(reports, way):
    report = reports[way]
    assert report["devices"] == 8
    assert report["donated"]
    assert report["norms"] < STEPS * TOLERANCE
    assert report["params"] < STEPS * TOLERANCE
