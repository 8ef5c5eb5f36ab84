"""Two processes joined by `jax.distributed`, each with half the examples: the numbers of one."""

import pytest

from tests.meshes import process_pairs
from tests.meshes.test_meshes import TOLERANCE

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each process reports."""
    directory = tmp_path_factory.mktemp("processes")
    return process_pairs.reports(directory, TIMEOUT_S, "tests.meshes.two_process_worker")


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize("process", [0, 1])
def test_the_numbers_are_those_of_one_process(reports, process, strategy):
    assert reports[process][strategy] <= TOLERANCE
