"""Rewritten functions on eight devices: the numbers of one, and how little has to be sent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fast_compiles import FAST_COMPILES
from tests.meshes.collectives import excess
from tests.meshes.mesh_cases import CASES, COUNTED, FULLY

# Code that LLVM has not optimised compiles faster; how a module is partitioned is decided before.
FLAGS = f"--xla_force_host_platform_device_count=8 {FAST_COMPILES}"
# In units of an array's largest entry: some hundred roundings to float32, 2**-24 each, one way all
# of them.
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


# A variance waits for means, which fully sharded parameters gather, and XLA combines as it likes
# what is ready.
VARIANCES = [
    case
    for case in COUNTED
    if case.statistics == ("variance",) or ("variance" in case.statistics and case.how == FULLY)
]
OTHERS = [case for case in COUNTED if case not in VARIANCES]


@pytest.mark.parametrize("case", VARIANCES, ids=[case.name for case in VARIANCES])
def test_a_variance_sends_three_sums_and_means(worker, case):
    """Beside the gradient and a sum for each statistic: two more that are centred, and means, once
    more at most.
    """
    report = report_of(worker, case.name)
    assert report["plain sent"] > 0
    assert report["collectives sent"] <= (1 + len(case.statistics) + 3) * report["plain sent"]


@pytest.mark.parametrize("case", OTHERS, ids=[case.name for case in OTHERS])
def test_no_more_is_sent_than_one_sum_for_each_statistic(worker, case):
    report = report_of(worker, case.name)
    assert report["plain"]["all-reduce"] >= 1
    over = excess(
        report["collectives"],
        report["plain"],
        len(case.statistics),
        in_layers=case.model == "scanned",
    )
    assert over == {}, f"{report['collectives']} beside {report['plain']}"


def test_the_worker_ends_well(worker):
    assert worker[1].startswith("exit code 0")


def test_collectives_in_loops_are_counted_as_such(worker):
    """A scan over layers sums each layer's gradient over the devices inside its loop."""
    assert (
        report_of(worker, "data parallel: scanned, all by loop")["plain"]["all-reduce in a loop"]
        == 1
    )
