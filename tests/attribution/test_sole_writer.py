"""One process writes an index at a time; the next one's rows never lie among its own."""

import errno
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from hlo_surgery.attribution import open_index, write_index
from hlo_surgery.attribution import writing as sole_writer

DATA = 1 + np.random.default_rng(0).random((40, 3), np.float32)
ROOT = Path(__file__).resolve().parent.parent.parent
FORK = multiprocessing.get_context("fork")


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


def test_a_child_that_lives_on_holds_nothing(tmp_path):
    """Such as one that loads data: it has the lock's file open."""
    children = []

    def f(x):
        if (tmp_path / "index.json").exists() and not children:
            children.append(FORK.Process(target=time.sleep, args=(60,)))
            children[0].start()
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt):
        write_index(f, DATA, tmp_path, batch_size=4)
    assert children[0].is_alive()
    write_index(f, DATA, tmp_path, batch_size=4)
    children[0].kill()
    children[0].join()


def test_many_read_a_whole_index(tmp_path):
    """Through `write_index`, too: it writes nothing, and asks for no lock."""
    write_index(lambda x: x, DATA, tmp_path)
    with sole_writer.sole_writer(tmp_path):
        index = write_index(lambda x: x, DATA, tmp_path)
    np.testing.assert_array_equal(index.rows["rows"], open_index(tmp_path).rows["rows"])


def test_a_disk_without_locks(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(sole_writer.fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="is on a disk without locks"):
        write_index(lambda x: x, DATA, tmp_path)


def test_a_system_without_such_locks_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(sole_writer, "fcntl", None)
    held = write_index(lambda x: x, DATA, tmp_path)
    np.testing.assert_array_equal(held.rows["rows"], DATA)
