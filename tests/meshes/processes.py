"""Programs of several virtual devices, run beside the tests, since JAX counts its devices once.

Alone, or in pairs that are joined by `jax.distributed`, with two devices each: their reports.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax

from tests.fast_compiles import FAST_COMPILES

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 60
FLAGS = f"--xla_force_host_platform_device_count=2 {FAST_COMPILES}"


def reports(flags, timeout, module, *arguments):
    """The lines of JSON that a module prints, which has to end well within so many seconds."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def reports_of_two(directory, timeout_s, *command):
    """The last line of each, as JSON, of `python -m *command ADDRESS NUMBER`."""
    address = f"localhost:{free_port()}"
    started = [start(directory, number, *command, address) for number in range(2)]
    codes = finish(started, timeout_s)
    said = "\n".join((directory / f"{number}.err").read_text() for number in range(2))
    assert codes == [0, 0], said
    return [
        json.loads((directory / f"{number}.out").read_text().splitlines()[-1])
        for number in range(2)
    ]


def join(address, number):
    """Make this process one of two whose devices belong together."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, number, initialization_timeout=TIMEOUT_S)
    assert (jax.process_count(), jax.local_device_count(), jax.device_count()) == (2, 2, 4)


def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def start(directory, number, *command):
    """A process with output to files: what waits for the other must not wait for a reader, too."""
    with (
        open(directory / f"{number}.out", "w") as out,
        open(directory / f"{number}.err", "w") as err,
    ):
        return subprocess.Popen(
            [sys.executable, "-m", *command, str(number)],
            cwd=ROOT,
            env=os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"},
            stdout=out,
            stderr=err,
        )


def finish(processes, timeout_s):
    """Exit codes once both have ended, one has failed or the time is up; none is left running."""
    end = time.monotonic() + timeout_s
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
