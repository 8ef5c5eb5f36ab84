"""Supervision: commands run in a child process, whose parent reports native code that ends it.

MLIR and XLA abort on some damaged files, read others for ever, and overflow the stack on deep ones.
The child is forked when all is imported and nothing has started, so that it costs no second start.
What native code writes to stderr is held back until the child has ended, and left out where it only
says how MLIR broke on a file.
"""

import mmap
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, NoReturn

WRONG_USE, INTERNAL = 2, 3
# CPU time for reading, at which the child ends: many times what whole files take.
SECONDS, SECONDS_PER_BYTE = 60.0, 1e-6
# These end a command as its user wishes.
ASKED_FOR = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")
ENDLESS = "MLIR read it without coming to an end: the file is damaged; dump it again"
BROKEN = (
    "MLIR broke on it ({}): the file is damaged, nests too deeply, or holds names that are no "
    "UTF-8; dump it again"
)
KILLED = "killed, perhaps for want of memory"
# The file that is being read, for the parent to name: shared by both processes.
_SHARED = mmap.mmap(-1, 4096)


@contextmanager
def reading(file: str, size: int) -> Generator[None]:
    """While this lasts, a process that ends does so for the sake of this file, of so many bytes."""
    name = file.encode(errors="replace")[: len(_SHARED) - 1]
    _SHARED[: len(name) + 1] = name + b"\0"
    _end_after(SECONDS + SECONDS_PER_BYTE * size)
    try:
        yield
    finally:
        _end_after(0)
        _SHARED[0] = 0


def _end_after(seconds: float) -> None:
    """End this process after so much CPU time, in native code too; zero is never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def supervised(command: Callable[[], None]) -> None:
    """Run a command in a child, and end as it ended. Where processes cannot be forked, run it
    here.
    """
    if not hasattr(os, "fork") or threading.active_count() > 1:
        command()
        return
    with tempfile.TemporaryFile() as native:
        child = _fork()
        if child == 0:
            _set_native_apart(native)
            command()
            sys.exit(0)
        _end_as(_waited(child), native)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of threads, which have not started
        return os.fork()


def _set_native_apart(native: IO[bytes]) -> None:
    """Python goes on writing to stderr, and what writes to its descriptor writes to a file."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(native.fileno(), 2)
    sys.stderr = stderr


def _waited(child: int) -> int:
    """The child's exit code, negative for a signal. Ctrl-C reaches the child too; other signals are
    passed on.
    """
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda number, _: os.kill(child, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _end_as(code: int, native: IO[bytes]) -> NoReturn:
    name = signal.Signals(-code).name if code < 0 else ""
    if name in ASKED_FOR:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    file = _SHARED[:].split(b"\0")[0].decode(errors="replace")
    if code < 0 and file:
        broken = ENDLESS if name == "SIGPROF" else BROKEN.format(name)
        print(f"error: {file}: this is no StableHLO module: {broken}", file=sys.stderr)
        sys.exit(WRONG_USE)
    _show(native)
    if code >= 0:
        sys.exit(code)
    why = KILLED if name == "SIGKILL" else f"native code of MLIR or XLA broke ({name})"
    report = "please report it, with the command and the module"
    print(f"internal error: {why}; {report}", file=sys.stderr)
    sys.exit(INTERNAL)


def _show(native: IO[bytes]) -> None:
    native.seek(0)
    sys.stderr.flush()
    shutil.copyfileobj(native, sys.stderr.buffer)
    sys.stderr.flush()
