"""A program of several virtual devices, run beside the tests: JAX counts its devices once."""

import json
import os
import subprocess
import sys
from pathlib import Path


def reports(flags, timeout, module, *arguments):
    """The lines of JSON that a module prints, which has to end well within so many seconds."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
