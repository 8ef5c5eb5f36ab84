"""Two processes joined by `jax.distributed`, each with half the examples: the numbers of one."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fast_compiles import FAST_COMPILES
from tests.meshes.test_meshes import TOLERANCE

TIMEOUT_S = 120
WORKER = "tests.meshes.two_process_worker"
FLAGS = f"--xla_force_host_platform_device_count=2 {FAST_COMPILES}"


def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def start(port, number, directory):
    """A process whose output goes to files: one that waits for the other must not wait for a
    reader, too.
    """
    with (
        open(directory / f"{number}.out", "w") as out,
        open(directory / f"{number}.err", "w") as err,
    ):
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                WORKER,
                f"localhost:{port}",
                str(number),
            ],
            cwd=Path(__file__).parent.parent.parent,
            env=os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
            stdout=out,
            stderr=err,
        )


def finish(processes):
    """Exit codes once both have ended, or one has failed, or the time is up; none is left
    running.
    """
    end = time.monotonic() + TIMEOUT_S
    while (
        time.monotonic() < end
        and any(p.poll() is None for p in processes)
        and not any(p.poll() for p in processes)
    ):
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()
    return [process.wait() for process in processes]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each process reports."""
    directory = tmp_path_factory.mktemp("processes")
    port = free_port()
    codes = finish([start(port, number, directory) for number in range(2)])
    said = "\n".join((directory / f"{number}.err").read_text() for number in range(2))
    assert codes == [0, 0], said
    return [
        json.loads((directory / f"{number}.out").read_text().splitlines()[-1])
        for number in range(2)
    ]


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize("process", [0, 1])
def test_the_numbers_are_those_of_one_process(reports, process, strategy):
    assert reports[process][strategy] <= TOLERANCE
