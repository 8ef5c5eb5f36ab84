"""One process writes an index at a time; the next one's rows never lie among its own."""

import errno
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from hlo_surgery.attribution import open_index, sole_writer, write_index

DATA = 1 + np.random.default_rng(0).random((40, 3), np.float32)
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


def _writes(folder, started):
    def slow(x):
        if (folder / "index.json").exists():
            started.set()
            time.sleep(60)
        return x

    write_index(slow, DATA, folder, batch_size=4)


def test_a_killed_writer_holds_nothing(tmp_path):
    started = FORK.Event()
    writer = FORK.Process(target=_writes, args=(tmp_path, started))
    writer.start()
    assert started.wait(60)
    with pytest.raises(BlockingIOError, match="wait for it, or choose another path"):
        write_index(lambda x: x, DATA, tmp_path, batch_size=4)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    index = write_index(lambda x: x, DATA, tmp_path, batch_size=4)
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
