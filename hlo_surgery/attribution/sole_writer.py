"""One writer: a folder that one process writes to at a time."""

import contextlib
from collections.abc import Generator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing tells two writers apart.
    fcntl = None

LOCK = ".lock"


@contextlib.contextmanager
def sole_writer(folder: Path) -> Generator[None, None, None]:
    """Holds a lock of the folder, which ends with the process, however that ends.

    The lock's file stays: a writer that removed it might remove the next one's.

    Raises BlockingIOError where somebody else holds it, OSError where the disk has no locks.
    """
    with (folder / LOCK).open("ab") as file:
        _lock(folder, file.fileno())
        try:
            yield
        finally:
            _unlock(file.fileno())


def _lock(folder: Path, file: int) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        raise BlockingIOError(
            problem.errno,
            f"{folder} is being written by another process, or by a child that one left behind; "
            "wait for it, or choose another path",
        ) from None
    except OSError as problem:
        raise OSError(
            problem.errno,
            f"{folder} is on a disk without locks ({problem.strerror}), where two processes could "
            "mix their rows; choose another path",
        ) from None


def _unlock(file: int) -> None:
    """By name: a child that was forked meanwhile has the file open for as long as it lives."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
