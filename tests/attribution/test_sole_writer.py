"""One process writes an index at a time; the next one's rows never lie among its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hlo_surgery.attribution import write_index

DATA = 1 + np.random.default_rng(0).random((40, 3), np.float32)
ROOT = Path(__file__).resolve().parent.parent.parent


def test_another_writer_is_refused(tmp_path):
    """Of other rows or the same, from the first batch on; what is there stays as it is."""
    seen = []

    def f(x):
        if (tmp_path / "index.json").exists():
            seen.append(x)
            with pytest.raises(BlockingIOError, match="is being written by another process"):
                write_index(lambda x: 5 * x, DATA, tmp_path, batch_size=4)
        return x

    index = write_index(f, DATA, tmp_path, batch_size=4)
    assert len(seen) == 10
    np.testing.assert_array_equal(index.rows["rows"], DATA)


def test_a_killed_writer_holds_nothing(tmp_path):
    program = """
        import time
        import numpy as np
        from hlo_surgery.attribution import write_index, writing

        def slow(*args):
            print("holds", flush=True)
            time.sleep(600)

        writing.append = slow
        write_index(lambda x: x, np.load("x.npy"), "index", batch_size=4)
    """
    np.save(tmp_path / "x.npy", DATA)
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert writer.stdout.readline() == b"holds\n"
    with pytest.raises(BlockingIOError, match="wait for it, or choose another path"):
        write_index(lambda x: x, DATA, tmp_path / "index", batch_size=4)
    writer.kill()
    writer.wait()
    index = write_index(lambda x: x, DATA, tmp_path / "index", batch_size=4)
    np.testing.assert_array_equal(index.rows["rows"], DATA)
